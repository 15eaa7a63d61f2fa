"""Prompts written by templates of Ollama's, in Go's template language."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from puna.chat.answers.family import tags_around
from puna.chat.answers.parts import Tags
from puna.chat.answers.registry import TEMPLATE, family_of
from puna.chat.templates.go import GoTemplate
from puna.chat.templates.go.parser import Action, Block, Branch, Text, paths
from puna.chat.templates.go.values import JsonList, JsonMap, Record, plain
from puna.chat.templates.messages import (
    ChatFormat,
    Message,
    SystemPlaces,
    Think,
    Traits,
    as_messages,
    call_function,
    has_later_system,
    settled,
    think_level,
)
from puna.errors import NotSupportedError, RequestError

#: Characters of a tag; a longer one would be compared with every end of an answer.
_MAX_TAG = 256


def thinking_tags(template: GoTemplate) -> Tags | None:
    """Return the texts around the block that prints `.Thinking` in a range over the messages."""
    for root in (template.tree.root, *template.tree.defined.values()):
        for block in _thinking_blocks(root, over_messages=False):
            first, last = block[0], block[-1]
            if isinstance(first, Text) and isinstance(last, Text):
                opening, closing = first.text.strip(), last.text.strip()
                if 0 < len(opening) <= _MAX_TAG and 0 < len(closing) <= _MAX_TAG:
                    return Tags(opening, closing)
    return None


def _thinking_blocks(block: Block, *, over_messages: bool) -> Iterator[Block]:
    """Yield the blocks with an action that prints `.Thinking`."""
    for statement in block:
        if isinstance(statement, Action):
            if over_messages and any(names[-1:] == ("Thinking",) for names in paths(statement.pipeline)):
                yield block
        elif isinstance(statement, Branch):
            inside = over_messages
            if statement.kind == "range":
                inside = any("Messages" in names for names in paths(statement.pipeline))
            yield from _thinking_blocks(statement.body, over_messages=inside)
            yield from _thinking_blocks(statement.otherwise or (), over_messages=over_messages)


def call_tags(template: GoTemplate) -> Tags:
    """Return the tags around the calls that the first block about `.ToolCalls` writes."""
    for root in (template.tree.root, *template.tree.defined.values()):
        for block in _call_blocks(root):
            return tags_around(_texts(block))
    return Tags("", "")


def _call_blocks(block: Block) -> Iterator[Block]:
    for statement in block:
        if isinstance(statement, Branch):
            if any("ToolCalls" in names for names in paths(statement.pipeline)):
                yield statement.body
            yield from _call_blocks(statement.body)
            yield from _call_blocks(statement.otherwise or ())


def _texts(block: Block) -> Iterator[str]:
    for statement in block:
        if isinstance(statement, Text):
            yield statement.text
        elif isinstance(statement, Branch):
            yield from _texts(statement.body)
            yield from _texts(statement.otherwise or ())


#: Keys that a tool's property keeps, in printing order.
_PROPERTY_KEYS = ("anyOf", "type", "items", "description", "enum", "properties", "required")


def collated(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """Return all system texts joined, and the messages with neighbours of one role merged.

    Texts are joined by a blank line; results of tools stay separate. Calls and thinking of merged
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
    """Merge messages of one role into one."""
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
    """Return a request's tools, reduced to the fields Ollama passes to a template. Raises RequestError."""
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


#: The template of models without one.
PASS_THROUGH = "{{ .Prompt }}"


class GoFormat(ChatFormat):
    """A Go template with Ollama's values; templates without `.Messages` are run once per turn."""

    def __init__(self, template: str) -> None:
        """Raises TemplateError."""
        self.template = template
        parsed = GoTemplate(template)
        self.identifiers = parsed.identifiers
        if not self.identifiers & {"messages", "response"}:
            parsed = parsed.appended("{{ .Response }}")
        self._template = parsed
        family = family_of(template, calls=bool({"tools", "toolcalls"} & self.identifiers))
        self.traits = Traits(
            thinking_tags=thinking_tags(parsed),
            family=family.name,
            call_tags=call_tags(parsed) if family is TEMPLATE else None,
            takes_levels="thinklevel" in self.identifiers,
            takes_tools="tools" in self.identifiers,
            takes_suffix="suffix" in self.identifiers,
        )

    def render(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        tools: Iterable[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] = (),
        values: Mapping[str, Any] | None = None,
        think: Think = None,
        add_generation_prompt: bool = True,
        system_in_place: bool = False,
    ) -> str:
        # Templates of this language have no place for documents, and no variables of their own.
        given = as_messages(messages)
        if system_in_place and "messages" in self.identifiers and has_later_system(given):
            places = self._system_places
            given = given if places.kept else settled(given, in_results=places.results)
        system, merged = collated(given)
        if "messages" not in self.identifiers:
            return self._turn_by_turn(merged, _think_values(think))
        values = {
            "System": system,
            "Messages": message_values(merged),
            "Tools": tool_values(tools),
            "Response": "",
            **_think_values(think),
        }
        return self._template.execute(values)

    @cached_property
    def _system_places(self) -> SystemPlaces:
        return SystemPlaces.of(self.render, calls="toolcalls" in self.identifiers)

    def render_insert(self, prompt: str, suffix: str, *, think: Think = None) -> str:
        if not self.traits.takes_suffix:
            raise NotSupportedError("this model's template has no suffix: it does not support insert")
        values = {"Prompt": prompt, "Suffix": suffix, "Response": "", **_think_values(think)}
        return self._template.execute(values)

    def _turn_by_turn(self, messages: Sequence[Message], think: Mapping[str, Any]) -> str:
        """Run the template once per turn; the last run stops where the answer begins."""
        parts: list[str] = []
        turn = {"System": "", "Prompt": "", "Response": ""}

        def finish_turn() -> None:
            parts.append(self._template.execute({**turn, **think}))
            turn.update(System="", Prompt="", Response="")

        for message in messages:
            if message.role == "system":
                if turn["Prompt"] or turn["Response"]:
                    finish_turn()
                turn["System"] = message.content
            elif message.role == "user":
                if turn["Response"]:
                    finish_turn()
                turn["Prompt"] = message.content
            elif message.role == "assistant":
                turn["Response"] = message.content
        parts.append(self._template.execute_until("Response", {**turn, **think}))
        return "".join(parts)


def _think_values(think: Think) -> dict[str, Any]:
    return {"Think": bool(think), "ThinkLevel": think_level(think), "IsThinkSet": think is not None}
