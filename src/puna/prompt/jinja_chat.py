"""Prompts from a model file's own Jinja template."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from puna.errors import TemplateError
from puna.markup.parts import Tags
from puna.markup.registry import TEMPLATE, family_of
from puna.prompt.format import ChatFormat, SpecialTokens, Think, Traits, think_level
from puna.prompt.jinja import JinjaTemplate
from puna.prompt.jinja_tags import call_tags
from puna.prompt.messages import Message, as_messages, call_function
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

Chat = list[dict[str, Any]]


class JinjaFormat(ChatFormat):
    """A Hugging Face chat template.

    Templates differ in what they accept. Where one refuses the usual form of a chat it is given
    another of the same meaning, in this order: arguments of tool calls as JSON text, the system
    text inside the first user message, neighbouring messages of one role merged.
    """

    def __init__(
        self, template: str, tokens: SpecialTokens | None = None, *, with_tools: str | None = None
    ) -> None:
        """`with_tools` is a template to use instead whenever there are tools. Raises TemplateError."""
        self.template = template
        self._template = JinjaTemplate(template)
        self._with_tools = JinjaTemplate(with_tools) if with_tools else None
        self._tokens = tokens or SpecialTokens()
        writing = self._with_tools or self._template
        family = family_of(writing.text, calls=writing.reads("tools"))
        self.traits = Traits(
            stop=stop_strings(self._template),
            thinking_tags=_thinking_tags(self._template),
            family=family.name,
            call_tags=call_tags(writing) if family is TEMPLATE else None,
            takes_tools=self._with_tools is not None or self._template.reads("tools"),
        )

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        think: Think = None,
        add_generation_prompt: bool = True,
    ) -> str:
        chat = [hugging_face_message(message) for message in as_messages(messages)]
        given_tools = [dict(tool) for tool in tools or ()] or None
        template = self._with_tools if given_tools and self._with_tools else self._template
        continues = bool(chat) and _is_continued(chat[-1])

        def attempt(form: Chat) -> str:
            values: dict[str, Any] = {
                **self._tokens.spellings,
                "messages": form,
                "tools": given_tools,
                "documents": None,
                "add_generation_prompt": add_generation_prompt and not continues,
                **_think_values(think),
            }
            text = template.render(values)
            if not continues:
                return text
            before, found, _ = text.rpartition(_CONTINUED)
            if not found:
                raise TemplateError("template error: the last message does not appear in the prompt")
            return before

        if continues:
            chat[-1] = {**chat[-1], "content": chat[-1]["content"] + _CONTINUED}
        text = _first_accepted(chat, attempt)
        bos = self._tokens.spellings.get("bos_token", "")
        return text.removeprefix(bos) if self._tokens.adds_bos and bos else text


def hugging_face_message(message: Message) -> dict[str, Any]:
    """A message as chat templates read it; thinking under each of the names in use."""
    value: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.thinking:
        value |= {"reasoning_content": message.thinking, "thinking": message.thinking}
    if message.tool_calls:
        value["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_name:
        value["name"] = message.tool_name
    if message.tool_call_id:
        value["tool_call_id"] = message.tool_call_id
    return value


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    name, arguments = call_function(call)
    value: dict[str, Any] = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"id": call["id"], **value} if call.get("id") else value


def _is_continued(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and bool(message["content"]) and "tool_calls" not in message


def _think_values(think: Think) -> dict[str, Any]:
    """The switches templates look at; all absent when the template is to decide."""
    if think is None:
        return {}
    level = {"reasoning_effort": think_level(think)} if think else {}
    return {"enable_thinking": bool(think), "thinking": bool(think), **level}


def _first_accepted(chat: Chat, attempt: Callable[[Chat], str]) -> str:
    """The text of the first form of `chat` the template accepts. Raises its error about the first form."""
    try:
        text = attempt(chat)
    except TemplateError as error:
        refused = error
    else:
        return _with_typed_content(chat, attempt, text)
    form = chat
    for change in (_arguments_as_text, _system_in_user, _neighbours_merged):
        changed = change(form)
        if changed == form:
            continue
        form = changed
        try:
            return attempt(form)
        except TemplateError:
            continue
    raise refused


def _with_typed_content(chat: Chat, attempt: Callable[[Chat], str], text: str) -> str:
    """`text`, unless the template lost the last message and finds it when contents are lists of parts."""
    wanted = chat[-1]["content"].strip() if chat else ""
    if not wanted or wanted in text:
        return text
    typed = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat]
    try:
        other = attempt(typed)
    except TemplateError:
        return text
    return other if wanted in other else text


def _arguments_as_text(chat: Chat) -> Chat:
    """Some templates concatenate the arguments of a call instead of encoding them."""

    def changed(call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        text = json.dumps(function["arguments"], ensure_ascii=False)
        return {**call, "function": {**function, "arguments": text}}

    return [
        {**message, "tool_calls": [changed(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in chat
    ]


def _system_in_user(chat: Chat) -> Chat:
    """Some models know no system role: their instructions belong in the first user message."""
    system = "\n\n".join(message["content"] for message in chat if message["role"] == "system")
    rest = [message for message in chat if message["role"] != "system"]
    first = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
    if not system or first is None:
        return chat
    merged = {**rest[first], "content": f"{system}\n\n{rest[first]['content']}"}
    return [*rest[:first], merged, *rest[first + 1 :]]


def _neighbours_merged(chat: Chat) -> Chat:
    """Some templates insist that user and assistant take turns."""
    runs: list[Chat] = []
    for message in chat:
        last = runs[-1][0] if runs else {}
        if set(last) == set(message) == {"role", "content"} and last["role"] == message["role"]:
            runs[-1].append(message)
        else:
            runs.append([message])
    return [
        run[0] if len(run) == 1 else {**run[0], "content": "\n\n".join(message["content"] for message in run)}
        for run in runs
    ]


def _thinking_tags(template: JinjaTemplate) -> Tags | None:
    return next((tags for tags in _THINKING_TAGS if template.literal(tags.closing)), None)
