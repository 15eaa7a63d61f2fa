"""Prompts from a model file's own Jinja template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from puna.errors import TemplateRenderError
from puna.markup.parts import Tags
from puna.markup.registry import TEMPLATE, family_of
from puna.prompt.format import ChatFormat, SpecialTokens, Think, Traits, think_level
from puna.prompt.jinja import JinjaTemplate
from puna.prompt.jinja_forms import Chat, Tools, first_accepted
from puna.prompt.jinja_messages import Wording
from puna.prompt.jinja_tags import call_tags
from puna.prompt.messages import Message, as_messages
from puna.prompt.stops import stop_strings

#: Ends a continued message while it is rendered; what the template writes after it is cut off.
_CONTINUED = "\ue000continued here\ue000"

#: Around thinking, in the templates of models that think.
_THINKING_TAGS = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("<|channel>thought", "<channel|>"),
)


class JinjaFormat(ChatFormat):
    """A Hugging Face chat template.

    Templates differ in what they accept. Where one refuses the usual form of a chat it is given
    another of the same meaning (`jinja_forms`): arguments of tool calls as JSON text, the system
    text inside the first user message, neighbouring messages of one role merged, short ids of tool
    calls and the like; then all of them with simpler descriptions of the tools.
    """

    def __init__(
        self, template: str, tokens: SpecialTokens | None = None, *, with_tools: str | None = None
    ) -> None:
        """`with_tools` is a template to use instead whenever there are tools. Raises TemplateError."""
        self.template = template
        self._template = JinjaTemplate(template)
        self._with_tools = JinjaTemplate(with_tools) if with_tools else None
        self._tokens = tokens or SpecialTokens()
        self.wording = Wording.of(template)
        writing = self._with_tools or self._template
        family = family_of(writing.text, calls=writing.reads("tools"))
        self.traits = Traits(
            stop=stop_strings(self._template),
            thinking_tags=_thinking_tags(self._template),
            family=family.name,
            call_tags=call_tags(writing) if family is TEMPLATE else None,
            takes_tools=self._with_tools is not None or self._template.reads("tools"),
            takes_documents=self._template.reads("documents"),
        )

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] = (),
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        chat = self.wording.chat(as_messages(messages))
        given_tools = [dict(tool) for tool in tools or ()] or None
        template = self._with_tools if given_tools and self._with_tools else self._template
        continues = bool(chat) and _is_continued(chat[-1])

        def attempt(form: Chat, tools: Tools) -> str:
            values: dict[str, Any] = {
                **self._tokens.spellings,
                "messages": form,
                "tools": tools,
                "documents": [dict(document) for document in documents] or None,
                "add_generation_prompt": add_generation_prompt and not continues,
                **_think_values(think),
            }
            text = template.render(values)
            if not continues:
                return text
            before, found, _ = text.rpartition(_CONTINUED)
            if not found:
                raise TemplateRenderError("template error: the last message does not appear in the prompt")
            return before

        if continues:
            chat[-1] = {**chat[-1], "content": chat[-1]["content"] + _CONTINUED}
        text = first_accepted(chat, given_tools, attempt)
        bos = self._tokens.spellings.get("bos_token", "")
        return text.removeprefix(bos) if self._tokens.adds_bos and bos else text


def _is_continued(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and bool(message["content"]) and "tool_calls" not in message


def _think_values(think: Think) -> dict[str, Any]:
    """The switches templates look at; all absent when the template is to decide."""
    if think is None:
        return {}
    level = {"reasoning_effort": think_level(think)} if think else {}
    return {"enable_thinking": bool(think), "thinking": bool(think), **level}


def _thinking_tags(template: JinjaTemplate) -> Tags | None:
    return next((tags for tags in _THINKING_TAGS if template.literal(tags.closing)), None)
