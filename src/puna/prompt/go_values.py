"""Messages and tools as the values Go templates expect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from puna.errors import RequestError
from puna.prompt.go.values import JsonList, JsonMap, Record, plain
from puna.prompt.messages import Message, call_function

#: What a tool's property keeps, in the order it is printed.
_PROPERTY_KEYS = ("anyOf", "type", "items", "description", "enum", "properties", "required")


def collated(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """All system texts joined, and the messages with neighbours of one role merged.

    Texts are joined by a blank line; results of tools stay apart. Calls and thinking of merged
    messages are kept (Ollama loses those of the later ones).
    """
    runs: list[list[Message]] = []
    for message in messages:
        if runs and runs[-1][0].role == message.role != "tool":
            runs[-1].append(message)
        else:
            runs.append([message])
    system = "\n\n".join(message.content for message in messages if message.role == "system")
    return system, [_joined(run) for run in runs]


def _joined(run: Sequence[Message]) -> Message:
    """Messages of one role as one."""
    first = run[0]
    if len(run) == 1:
        return first
    return Message(
        role=first.role,
        content="\n\n".join(message.content for message in run),
        thinking="\n\n".join(message.thinking for message in run if message.thinking),
        images=tuple(chain.from_iterable(message.images for message in run)),
        tool_calls=tuple(chain.from_iterable(message.tool_calls for message in run)),
        tool_name=first.tool_name,
        tool_call_id=first.tool_call_id,
    )


def message_values(messages: Iterable[Message]) -> list[Record]:
    return [_message(message) for message in messages]


def _message(message: Message) -> Record:
    calls = [_call(i, call) for i, call in enumerate(message.tool_calls)]
    fields: dict[str, Any] = {
        "Role": message.role,
        "Content": message.content,
        "Thinking": message.thinking,
        "Images": list(message.images),
        "ToolCalls": calls,
        "ToolName": message.tool_name,
        "ToolCallID": message.tool_call_id,
    }
    shown = {
        "thinking": message.thinking,
        "images": list(message.images),
        "tool_calls": [call.json for call in calls],
        "tool_name": message.tool_name,
        "tool_call_id": message.tool_call_id,
    }
    json = {"role": message.role, "content": message.content} | {k: v for k, v in shown.items() if v}
    return Record("api.Message", fields, json)


def _call(position: int, call: Mapping[str, Any]) -> Record:
    name, given = call_function(call)
    arguments = JsonMap(given)
    index = (call.get("function") or {}).get("index", position)
    identifier = str(call.get("id") or "")
    function_json = {"index": index, "name": name, "arguments": plain(arguments)}
    function = Record(
        "api.ToolCallFunction", {"Index": index, "Name": name, "Arguments": arguments}, function_json
    )
    json = ({"id": identifier} if identifier else {}) | {"function": function_json}
    return Record("api.ToolCall", {"ID": identifier, "Function": function}, json)


def tool_values(tools: Iterable[Mapping[str, Any]] | None) -> JsonList:
    """The tools of a request, reduced to what Ollama lets through to a template. Raises RequestError."""
    found = JsonList()
    for place, tool in enumerate(tools or ()):
        try:
            found.append(_tool(tool))
        except (AttributeError, TypeError, ValueError) as error:  # an object was expected, or a list
            raise RequestError(f"tools[{place}] is malformed: {error}") from error
    return found


def _tool(tool: Mapping[str, Any]) -> Record:
    given = tool.get("function") or {}
    parameters = _parameters(given.get("parameters") or {})
    name, description = str(given.get("name", "")), str(given.get("description") or "")
    function_json: dict[str, Any] = {"name": name}
    if description:
        function_json["description"] = description
    function_json["parameters"] = parameters.json
    function = Record(
        "api.ToolFunction",
        {"Name": name, "Description": description, "Parameters": parameters},
        function_json,
    )
    kind = str(tool.get("type") or "function")
    json: dict[str, Any] = {"type": kind}
    if tool.get("items") is not None:
        json["items"] = plain(tool["items"])
    json["function"] = function_json
    return Record("api.Tool", {"Type": kind, "Items": tool.get("items"), "Function": function}, json)


def _parameters(given: Mapping[str, Any]) -> Record:
    properties = JsonMap({name: _property(item) for name, item in (given.get("properties") or {}).items()})
    kind = str(given.get("type") or "object")
    json: dict[str, Any] = {"type": kind}
    for key in ("$defs", "items"):
        if given.get(key) is not None:
            json[key] = plain(given[key])
    required = list(given.get("required") or ())
    if required:
        json["required"] = required
    json["properties"] = plain(properties)
    fields = {
        "Type": kind,
        "Required": required,
        "Properties": properties,
        "Defs": given.get("$defs"),
        "Items": given.get("items"),
    }
    return Record("api.ToolFunctionParameters", fields, json)


def _property(given: Any) -> Record:
    schema = given if isinstance(given, Mapping) else {}
    kept = {key: schema[key] for key in _PROPERTY_KEYS if schema.get(key) not in (None, [], {}, "")}
    nested = {name: _property(item) for name, item in (schema.get("properties") or {}).items()}
    kinds = schema.get("type") or ""
    fields = {
        "AnyOf": [_property(branch) for branch in schema.get("anyOf") or ()],
        "Type": kinds if isinstance(kinds, str) else kinds[0] if len(kinds) == 1 else list(kinds),
        "Items": schema.get("items"),
        "Description": str(schema.get("description") or ""),
        "Enum": list(schema.get("enum") or ()),
        "Properties": JsonMap(nested),
        "Required": list(schema.get("required") or ()),
    }
    json = {key: plain(value) for key, value in kept.items()}
    if nested:
        json["properties"] = {name: nested[name].json for name in sorted(nested)}
    if isinstance(kinds, list) and len(kinds) == 1:
        json["type"] = kinds[0]
    return Record("api.ToolProperty", fields, json)
