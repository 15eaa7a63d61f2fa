"""A chat in other forms of the same meaning, for templates that refuse the usual one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any, Final

from puna.errors import TemplateError

Chat = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None
Attempt = Callable[[Chat, Tools], str]

#: Types of JSON schemas that templates turn into types of a programming language.
_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object")

#: Characters of a tool call's id, where a template insists.
_SHORT_ID: Final = 9


def first_accepted(chat: Chat, tools: Tools, attempt: Attempt) -> str:
    """The text of the first form the template accepts. Raises its error about the first form."""
    try:
        text = attempt(chat, tools)
    except TemplateError as error:
        refused = error
    else:
        return _with_typed_content(chat, lambda form: attempt(form, tools), text)
    simpler = [simple_tool(tool) for tool in tools or ()]
    for described in (tools, *([simpler] if simpler and simpler != tools else [])):
        form, untried = chat, described is not tools
        for change in (None, _arguments_as_text, _system_in_user, _neighbours_merged, _short_ids):
            changed = form if change is None else change(form)
            untried = untried or changed != form
            form = changed
            if not untried:
                continue
            untried = False
            try:
                return attempt(form, described)
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
