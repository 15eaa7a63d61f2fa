"""Prompts from a model file's own Jinja template."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import nodes

from puna.chat.answers.family import tags_around
from puna.chat.answers.parts import Tags
from puna.chat.answers.registry import TEMPLATE, family_of
from puna.chat.templates.format import ChatFormat, SpecialTokens, Think, Traits, stop_strings, think_level
from puna.chat.templates.jinja import JinjaTemplate
from puna.chat.templates.jinja_forms import Chat, Tools, first_accepted
from puna.chat.templates.messages import Message, as_messages, call_function
from puna.errors import TemplateRenderError


def call_tags(template: JinjaTemplate) -> Tags:
    """The tags of the first block that is there for a message's `tool_calls`."""
    waiting: list[nodes.Node] = [template.tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.If) and _mentions_calls(node.test):
            return tags_around(_written(node.body))
        if isinstance(node, nodes.For) and _mentions_calls(node.iter):
            return tags_around(_written(node.body))
        waiting += reversed([*node.iter_child_nodes()])
    return Tags("", "")


def _mentions_calls(node: nodes.Node) -> bool:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, nodes.Getattr) and node.attr == "tool_calls":
            return True
        if isinstance(node, nodes.Const) and node.value == "tool_calls":
            return True
        if isinstance(node, nodes.Not):
            continue
        waiting += node.iter_child_nodes()
    return False


def _written(body: list[nodes.Node]) -> Iterator[str]:
    """The texts that are written, whatever they depend on, in their order."""
    waiting = body[::-1]
    while waiting:
        node = waiting.pop()
        match node:
            case nodes.TemplateData(data=text) | nodes.Const(value=str(text)):
                yield text
            case nodes.Output() | nodes.Concat() | nodes.Add() | nodes.For() | nodes.If():
                children = node.iter_child_nodes(exclude=("test", "iter", "target"))
                waiting += reversed([*children])


#: What a template asks that tells calls from answers by there being no content; "" would be an empty answer.
_NO_CONTENT: Final = re.compile(r"""\bcontent(["']\])? is (not )?none\s*-?%}""")

#: What a template reads that knows of one call in a message.
_FIRST_CALL: Final = re.compile(r"""tool_calls(["']\])?\[0\]""")


@dataclass(frozen=True)
class Wording:
    """How a template wants calls and their results, as far as its text tells.

    `nothing` is the content of a message that only calls. `one_call`: a message has one call at most, and
    the result comes after it. `results_within`: results belong to the message that calls.
    """

    nothing: str | None = ""
    one_call: bool = False
    results_within: bool = False

    @classmethod
    def of(cls, template: str) -> Wording:
        return cls(
            None if _NO_CONTENT.search(template) else "",
            _FIRST_CALL.search(template) is not None,
            "tool_responses" in template,
        )

    def chat(self, messages: Iterable[Message]) -> list[dict[str, Any]]:
        """A chat, message by message."""
        chat = [_message(message, self.nothing) for message in messages]
        if self.results_within:
            chat = _results_within(chat)
        return _one_call_each(chat, self.nothing) if self.one_call else chat


def _message(message: Message, nothing: str | None) -> dict[str, Any]:
    """One message; thinking is under each of the names in use."""
    content = message.content or (nothing if message.tool_calls else "")
    value: dict[str, Any] = {"role": message.role, "content": content}
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


def _turns(chat: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each message, with the results of tools right after one that calls."""
    place = 0
    while place < len(chat):
        message, begin = chat[place], place + 1
        place += 1
        while "tool_calls" in message and place < len(chat) and chat[place]["role"] == "tool":
            place += 1
        yield message, chat[begin:place]


class _Results:
    """Results that belong to calls by their ids, and others that belong to the next call in their order."""

    def __init__(self, results: list[dict[str, Any]], calls: list[dict[str, Any]]) -> None:
        ids = {call.get("id") for call in calls} - {None}
        self._named: dict[str, dict[str, Any]] = {}
        self.others: deque[dict[str, Any]] = deque()
        for result in results:
            id: Any = result.get("tool_call_id")
            if id in ids and id not in self._named:
                self._named[id] = result
            else:
                self.others.append(result)

    def of(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a call, given once."""
        if (found := self._named.pop(str(call.get("id")), None)) is not None:
            return found
        return self.others.popleft() if self.others else None


def _results_within(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """`chat` with results in the message that calls, by the names of their tools."""
    form: list[dict[str, Any]] = []
    for message, given in _turns(chat):
        if given:
            results = _Results(given, message["tool_calls"])
            pairs = [(call["function"]["name"], results.of(call)) for call in message["tool_calls"]]
            pairs += [(result.get("name", "unknown"), result) for result in results.others]
            responses = [{"name": name, "response": one["content"]} for name, one in pairs if one is not None]
            message = {**message, "tool_responses": responses}
        form.append(message)
    return form


def _one_call_each(chat: list[dict[str, Any]], nothing: str | None) -> list[dict[str, Any]]:
    """`chat` with a message for each call, and its result, if there is one, after it."""
    form: list[dict[str, Any]] = []
    for message, given in _turns(chat):
        calls = message.get("tool_calls", [])
        if len(calls) < 2:
            form += [message, *given]
            continue
        results = _Results(given, calls)
        for number, call in enumerate(calls):
            said = message if number == 0 else {"role": message["role"], "content": nothing}
            form.append({**said, "tool_calls": [call]})
            if (result := results.of(call)) is not None:
                form.append(result)
        form += results.others
    return form


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
