"""A chat in other forms of the same meaning, for templates that refuse the usual one."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final

from puna.errors import TemplateError, TemplateRefusalError, shown

Chat = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None
Attempt = Callable[[Chat, Tools], str]

#: Types of JSON schemas that templates turn into types of a programming language.
_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object")

#: Under which names templates look for thinking.
_THINKING: Final = ("reasoning_content", "thinking")

#: Characters of a tool call's id, where a template insists.
_SHORT_ID: Final = 9


def first_accepted(chat: Chat, tools: Tools, attempt: Attempt) -> str:
    """The text of the first form the template accepts.

    If there is none, raises what the template itself says against a form (`raise_exception`), else what went
    wrong with the first, with the message it is about.
    """
    try:
        text = attempt(chat, tools)
    except TemplateError as error:
        refused = _Refused(error, chat, tools)
    else:
        return _with_typed_content(chat, lambda form: attempt(form, tools), text)
    for form, described in _others(chat, tools):
        try:
            return attempt(form, described)
        except TemplateError as error:
            if isinstance(error, TemplateRefusalError) and not refused.by_the_template:
                refused = _Refused(error, form, described)
    raise refused.told(len(chat), attempt)


def _others(chat: Chat, tools: Tools) -> Iterator[tuple[Chat, Tools]]:
    """All other forms, those that differ least first; without tools, the last have an empty list of them."""
    tried = [(chat, tools)]
    for described in (tools, [simple_tool(tool) for tool in tools or ()]):
        form = chat
        for change in (None, *_CHANGES):
            form = form if change is None else change(form)
            for other in (form, _arguments_as_text(form)):
                if (other, described) not in tried:
                    tried.append((other, described))
                    yield other, described


class _Refused:
    """That a template did not take a form."""

    def __init__(self, error: TemplateError, form: Chat, tools: Tools) -> None:
        self._error = error
        self._form = form
        self._tools = tools

    @property
    def by_the_template(self) -> bool:
        return isinstance(self._error, TemplateRefusalError)

    def told(self, count: int, attempt: Attempt) -> TemplateError:
        """The error with the message it is about: the one with which it began. `count` are all messages."""

        def fails(first: int) -> bool:
            """Whether the template says the same of the first messages alone."""
            try:
                attempt(self._form[:first], self._tools)
            except TemplateError as error:
                return str(error) == str(self._error)
            return False

        last = bisect_left(range(len(self._form)), True, key=fails)
        if last == 0:
            return self._error  # about no message
        number = f" {last}" if len(self._form) == count else ""
        role = shown(self._form[last - 1]["role"])
        return type(self._error)(f"{self._error} (about message{number} of the chat, role {role})")


def _with_typed_content(chat: Chat, attempt: Callable[[Chat], str], text: str) -> str:
    """`text`, unless the template lost the last message and finds it when contents are lists of parts."""
    wanted = (chat[-1]["content"] or "").strip() if chat else ""
    if not wanted or wanted in text:
        return text
    typed = [{**message, "content": [{"type": "text", "text": message["content"] or ""}]} for message in chat]
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
    """Some models know no system role: their instructions belong in the first user message, or are one."""
    system = "\n\n".join(message["content"] for message in chat if message["role"] == "system")
    rest = [message for message in chat if message["role"] != "system"]
    if not system:
        return chat
    first = next((i for i, message in enumerate(rest) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": system}, *rest]
    merged = {**rest[first], "content": f"{system}\n\n{rest[first]['content']}"}
    return [*rest[:first], merged, *rest[first + 1 :]]


def _neighbours_merged(chat: Chat) -> Chat:
    """Some templates insist that user and assistant take turns, or know of the last message only."""
    return [_merged(run) for run in _runs(chat, lambda last, role: role == last != "tool")]


def _runs(chat: Chat, belongs: Callable[[str, str], bool]) -> list[Chat]:
    """The messages in runs: whether one belongs to a run, its role and that of the run's last tell."""
    runs: list[Chat] = []
    for message in chat:
        if runs and belongs(runs[-1][-1]["role"], message["role"]):
            runs[-1].append(message)
        else:
            runs.append([message])
    return runs


def _merged(run: Chat) -> dict[str, Any]:
    """One message with the texts, the thinking and the calls of all."""
    if len(run) == 1:
        return run[0]
    made: dict[str, Any] = {}
    for message in run:
        made |= message
    for key in ("content", *_THINKING):
        if texts := [message[key] for message in run if message.get(key)]:
            made[key] = "\n\n".join(texts)
    if "tool_calls" in made:
        made["tool_calls"] = [call for message in run for call in message.get("tool_calls", ())]
    return made


def _said_as_thinking(chat: Chat) -> Chat:
    """Some templates have one place for what is said and what is thought before a call."""
    return [
        {**message, "content": "", **{key: f"{message[key]}\n\n{message['content']}" for key in _THINKING}}
        if message["content"] and "tool_calls" in message and all(key in message for key in _THINKING)
        else message
        for message in chat
    ]


def _nothing_left_out(chat: Chat) -> Chat:
    """Some templates want of each answer that it says or calls something: others are no turn to them."""
    return _neighbours_merged(
        [
            message
            for message in chat
            if message["role"] != "assistant" or message["content"] or "tool_calls" in message
        ]
    )


def _text_with_result(chat: Chat) -> Chat:
    """Some templates take no text of the user right after a result: it is said with it."""
    form: Chat = []
    for first, *texts in _runs(chat, lambda last, role: role == "user" and last in ("tool", "user")):
        if first["role"] == "tool":
            said = [first["content"], *(text["content"] for text in texts)]
            form.append({**first, "content": "\n\n".join(said)})
        else:
            form += [first, *texts]
    return form


def _short_ids(chat: Chat) -> Chat:
    """Some templates take ids of tool calls of nine letters and digits only, and no call without one."""
    unanswered: dict[str, None] = {}
    count = 0

    def short(identifier: str) -> str:
        if len(identifier) == _SHORT_ID and identifier.isascii() and identifier.isalnum():
            return identifier
        return hashlib.blake2b(identifier.encode()).hexdigest()[:_SHORT_ID]

    form = []
    for message in chat:
        if "tool_calls" in message:
            calls = []
            for call in message["tool_calls"]:
                count += 1
                calls.append({**call, "id": short(call.get("id") or f"call {count}")})
            unanswered = dict.fromkeys(call["id"] for call in calls)
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            given = message.get("tool_call_id")
            identifier = short(given) if given else next(iter(unanswered), short(""))
            unanswered.pop(identifier, None)
            message = {**message, "tool_call_id": identifier}
        form.append(message)
    return form


#: One after the other, each changes what the one before has made.
_CHANGES: Final = (
    _system_in_user,
    _neighbours_merged,
    _said_as_thinking,
    _nothing_left_out,
    _text_with_result,
    _short_ids,
)


def simple_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with all that templates may expect of one, and without what they may not know.

    Some templates go round in circles at a type that they cannot name in a programming language, `null`
    among them: such a one is left open, and out of a list of types.
    """
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    parameters = function.get("parameters")
    whole = {"type": "object", "properties": {}, **(parameters if isinstance(parameters, dict) else {})}
    described = {**function, "parameters": _simple_schema(whole)}
    described.setdefault("description", "")
    return {**tool, "function": described}


def _simple_schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_simple_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    simple = {
        key: value if key in ("enum", "const", "default", "examples", "required") else _simple_schema(value)
        for key, value in schema.items()
    }
    if isinstance(schema.get("properties"), dict):
        simple["properties"] = {
            name: _described(_simple_schema(one)) for name, one in schema["properties"].items()
        }
    kinds = schema.get("type")
    if isinstance(kinds, list):
        known = [kind for kind in kinds if kind in _TYPES]
        simple["type"] = known[0] if len(known) == 1 else known or None
    elif isinstance(kinds, str) and kinds not in _TYPES:
        simple["type"] = None
    if simple.get("type") == "array" and not isinstance(simple.get("items"), dict):
        simple["items"] = {"type": None}
    if simple.get("type") == "object":
        simple.setdefault("additionalProperties", {"type": None})
    return simple


def _described(schema: Any) -> Any:
    """A property; templates ask each for its description and type."""
    if not isinstance(schema, dict):
        return {"type": None, "description": ""}
    return {"type": None, "description": "", **schema}
