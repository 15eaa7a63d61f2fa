"""Grammars of tool calls with valid arguments, in a family's own markup."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from puna.chat.answers.family import Reading
from puna.chat.answers.parts import Form, ParameterForm
from puna.chat.answers.tools import Tool, dumps, has_type
from puna.errors import RequestError, shown
from puna.grammar.diagnosis import GUIDANCE, check_parts, check_patterns, check_terminal
from puna.grammar.keywords import CONSTRAINING
from puna.grammar.schema import checked_schema
from puna.grammar.text_values import Unwritable, looks_other, text_terminal
from puna.tokenizer import Tokenizer

#: Calls in one answer if a grammar governs them.
MAX_CALLS: Final = 64

#: Keywords supported in an object's schema if each parameter has its own markup.
_OF_PARAMETERS: Final = frozenset(("type", "properties", "required", "additionalProperties"))

#: Writes a text of the markup in Lark, with its control tokens as tokens.
Spell = Callable[[str], str]


def calls_grammar(reading: Reading, spell: Spell) -> str:
    """Return the Lark grammar of answers that call tools according to `reading.choice`.

    Raises a `RequestError` that names the tool and what is wrong with its parameters.
    """
    syntax, tools = reading.family.calls, _chosen(reading)
    if syntax is None:
        raise RequestError("this model's template has no place for tools: it cannot be made to call one")
    writer = _Writer(syntax.form, spell)
    writer.write(reading, tools, syntax.openings)
    return "\n".join([f"start: {writer.start}", *writer.rules, r"ANY: /(?s:.*)/", ""])


def check_tools(reading: Reading) -> None:
    """Raise a `RequestError` naming the first unusable tool and the place in its parameters, if any."""
    for tool in _chosen(reading):
        with _of_tool(tool):
            check_parts(checked_schema(dict(tool.parameters)).parts())


@contextmanager
def _of_tool(tool: Tool) -> Iterator[None]:
    """Prefix errors with the tool whose parameters they are about."""
    try:
        yield
    except RequestError as error:
        reason = str(error).removeprefix("format: ")
        raise RequestError(f"the parameters of tool {shown(tool.name)}: {reason}") from None


def _chosen(reading: Reading) -> list[Tool]:
    kind, _, name = reading.choice.partition(":")
    if kind != "function":
        return list(reading.tools.values())
    if name not in reading.tools:
        known = ", ".join(reading.tools)
        raise RequestError(f"tool_choice: there is no tool {shown(name)}; there are {known}")
    return [reading.tools[name]]


@dataclass
class _Writer:
    form: Form
    spell: Spell
    start: str = ""
    rules: list[str] = field(default_factory=list)

    def write(self, reading: Reading, tools: list[Tool], openings: tuple[str, ...]) -> None:
        form = self.form
        for number, tool in enumerate(tools):
            self._tool(number, tool)
        self.rules.append("call: " + " | ".join(f"tool_{number}" for number in range(len(tools))))
        several = reading.parallel and form.most != 1
        more = f" ({self._spelled(form.between)} call){{0,{MAX_CALLS - 1}}}" if several else ""
        lead = f"({self._spelled(form.lead)})? " if form.lead else ""
        self.rules.append(f"calls: {lead}{self._spelled(form.begin)} call{more} {self._spelled(form.end)}")
        self.start = "calls"
        if reading.choice == "auto":
            self._or_text(form, openings, several)

    def _or_text(self, form: Form, openings: tuple[str, ...], several: bool) -> None:
        """Add the rules of text instead of calls, or before them."""
        self.start = "calls | said"
        if form.said:
            self.rules.append(f"said: ({self._spelled(form.lead)})? {self._spelled(form.said)} TEXT")
            self.rules.append("TEXT: ANY")
            return
        begins = form.begin or form.before
        controls = [text for text in openings if self.spell(text).startswith("<[")]
        plain = [text for text in openings if text not in controls]
        if not openings:  # only the start of an answer can be a call
            self.rules += ["said: TEXT", r"TEXT: /([^\s{\[](?s:.*))?/"]
            return
        without = " & ".join(["ANY", *(f"~(ANY {json.dumps(text)} ANY)" for text in plain)])
        self.rules.append(f"TEXT: {without}")
        if plain and begins.startswith(tuple(plain)):
            opening = next(text for text in plain if begins.startswith(text))
            self.rules.append(f"BEFORE: ({without}) {json.dumps(opening)}")
            rest = self._spelled(begins.removeprefix(opening))
            first = "call" if form.begin else "rest_of_call"
            self._rest(first, form, several, rest)
            self.start = "TEXT | BEFORE rest"
            return
        self.rules.append("said: TEXT calls?")
        self.start = "said"

    def _rest(self, first: str, form: Form, several: bool, rest: str) -> None:
        """Add the rules of calls after the first text of their markup."""
        more = f" ({self._spelled(form.between)} call){{0,{MAX_CALLS - 1}}}" if several else ""
        if form.begin:
            self.rules.append(f"rest: {rest} {first}{more} {self._spelled(form.end)}")
            return
        bodies = " | ".join(rule.partition(":")[0] for rule in self.rules if rule.startswith("body_"))
        self.rules.append(f"{first}: {rest} ({bodies})")
        self.rules.append(f"rest: {first}{more} {self._spelled(form.end)}")

    def _tool(self, number: int, tool: Tool) -> None:
        form = self.form
        name = tool.name
        if '"' in form.before[-1:]:
            name = json.dumps(name, ensure_ascii=False)[1:-1]
        with _of_tool(tool):
            check_patterns(checked_schema(dict(tool.parameters)).patterns)
            if form.parameters is None:
                arguments = _json_rule(_as_object(tool.parameters))
            else:
                arguments = self._parameters(number, tool, form.parameters)
        self.rules.append(
            f"body_{number}: {self._spelled(name + form.after)} {arguments} {self._spelled(form.closing)}"
        )
        self.rules.append(f"tool_{number}: {self._spelled(form.before)} body_{number}")

    def _parameters(self, number: int, tool: Tool, form: ParameterForm) -> str:
        """Return the rule of all parameters in the schema's order, where optional ones may be missing."""
        schema = tool.parameters
        for keyword in schema.keys() & CONSTRAINING - _OF_PARAMETERS:
            raise RequestError(f'the keyword "{keyword}" at # is not supported in calls of this model')
        listed = schema.get("required")
        required = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        properties = {**dict.fromkeys(required, True), **tool.properties}
        names = [
            name
            for name, part in properties.items()
            if name in required or (part is not False and _branches(tool, part, _place(name)))
        ]
        between = self._spelled(form.between)
        # From the last parameter backwards: the rule if none was written before, and if some were.
        none, some = '""', '""'
        for place, name in reversed(list(enumerate(names))):
            rule = f"p_{number}_{place}"
            self.rules.append(f"{rule}: {self._parameter(rule, tool, name, properties[name], form)}")
            first, later = f"n_{number}_{place}", f"s_{number}_{place}"
            skips = name not in required
            self.rules.append(f"{first}: {rule} {some}" + (f" | {none}" if skips else ""))
            self.rules.append(f"{later}: {between} {rule} {some}" + (f" | {some}" if skips else ""))
            none, some = first, later
        return none

    def _parameter(self, rule: str, tool: Tool, name: str, schema: Any, form: ParameterForm) -> str:
        place = _place(name)
        is_plain = '" string="true"' in form.after_key
        ways: list[str] = []
        branches = _branches(tool, schema, place)
        if not branches:
            raise RequestError(f"no value satisfies the schema at {place}")
        others: list[str] = []
        if form.untyped and not is_plain:
            others = [kind for kind in tool.types_of(schema) if kind != "string"]
            written = [way for way in branches if not _is_read_otherwise(tool, name, *way)]
            branches = written or branches
        for kind, branch in branches:
            if kind == "string" and form.quotes is not None:
                ways.append(self._text(f"{rule}_{len(ways)}".upper(), name, branch, form, place, others))
            else:
                value = _json_rule(_with_definitions(branch, tool.parameters))
                opening, closing = form.quotes if form.quotes is not None and form.untyped else ("", "")
                after = form.after_key.replace("true", "false") if is_plain else form.after_key
                key = self._spelled(form.key + name + after + opening)
                ways.append(f"{key} {value} {self._spelled(closing + form.closing)}")
        return " | ".join(ways)

    def _text(
        self, terminal: str, name: str, schema: Any, form: ParameterForm, place: str, others: list[str]
    ) -> str:
        """Return the rule of a string, written verbatim, of a parameter that may also have types `others`."""
        assert form.quotes is not None
        opening, closing = form.quotes
        closing += form.closing
        try:
            value = text_terminal(schema if isinstance(schema, Mapping) else {})
        except Unwritable as error:
            raise RequestError(f"{error} at {place} is not supported in calls of this model") from None
        excluded = []
        mark = closing.strip()
        if form.untyped:  # else it would be read as another type, or without its line breaks
            excluded += [f"~{look}" for look in looks_other(dict.fromkeys(("null", *others)))]
            if not opening.endswith("\n"):
                excluded += [r"~/\n(?s:.*)/", r"~/(?s:.*)\n/"]
        if isinstance(schema, Mapping) and schema.keys() & CONSTRAINING - {"type"}:
            check_terminal(" & ".join([value, *excluded]), place)
        key = self._spelled(form.key + name + form.after_key + opening)
        if self.spell(closing).startswith("<["):
            self.rules.append(f"{terminal}: {' & '.join([value, *excluded])}")
            return f"{key} {terminal} {self._spelled(closing)}"
        excluded.append(f"~(ANY {json.dumps(mark)} ANY)")
        self.rules.append(f"{terminal}: ({' & '.join([value, *excluded])}) {json.dumps(closing)}")
        return f"{key} {terminal}"

    def _spelled(self, text: str) -> str:
        return self.spell(text) if text else '""'


def _place(name: str) -> str:
    return f"#/properties/{name}"


def _branches(tool: Tool, schema: Any, place: str) -> list[tuple[str, Any]]:
    """Return the ways to satisfy a schema, each with the kind of its values: "string" or "other".

    The list is empty if no value does. A schema that recursive unions reach repeatedly counts once.
    """
    ways: list[tuple[str, Any]] = []
    waiting, seen = [schema], set[int]()
    while waiting:
        branch = waiting.pop()
        if branch is True or not isinstance(branch, Mapping):
            ways.append(("string", {}))
            continue
        branch = tool.resolved(branch)
        if id(branch) in seen:
            continue
        seen.add(id(branch))
        union = _union(branch, place)
        if union is None:
            ways += _ways(tool, branch, place)
        else:
            waiting += reversed(union)
    return ways


def _union(schema: Mapping[str, Any], place: str) -> list[Any] | None:
    """Return the alternatives of a schema that is nothing but a union; None for other schemas."""
    for keyword in ("anyOf", "oneOf"):
        listed = schema.get(keyword)
        if not isinstance(listed, list):
            continue
        for other in schema.keys() & CONSTRAINING - {keyword, "type"}:
            raise RequestError(
                f'the keyword "{other}" beside "{keyword}" at {place} is not supported in calls of this model'
            )
        return listed
    return None


def _ways(tool: Tool, schema: Mapping[str, Any], place: str) -> list[tuple[str, Any]]:
    """Return `_branches` for a schema without a union."""
    if "allOf" in schema:
        raise RequestError(f'the keyword "allOf" at {place} is not supported in calls of this model')
    types = tool.types_of(schema)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        only = [schema["const"]] if "const" in schema else values
        values = [value for value in values if value in only and has_type(value, types)]
        if not values:
            return []
        schema = {**{key: part for key, part in schema.items() if key != "const"}, "enum": values}
    if types and "string" not in types:
        return [("other", schema)]
    if isinstance(values, list) and not all(isinstance(value, str) for value in values):
        texts = [value for value in values if isinstance(value, str)]
        others = [value for value in values if not isinstance(value, str)]
        ways: list[tuple[str, Any]] = [("other", {**schema, "enum": others})]
        return [*ways, ("string", {**schema, "enum": texts})] if texts else ways
    if types in ([], ["string"]):
        return [("string", schema)]
    # Text would be read as the first type that fits, so only the types other than string are written.
    return [("other", {**schema, "type": [kind for kind in types if kind != "string"]})]


def _is_read_otherwise(tool: Tool, name: str, kind: str, schema: Any) -> bool:
    """Return whether every string to choose from would be read as another type."""
    if kind != "string" or not isinstance(schema, Mapping):
        return False
    values = schema.get("enum")
    return isinstance(values, list) and all(tool.value(name, value) != dumps(value) for value in values)


def _as_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", **schema} if "$ref" not in schema else dict(schema)


def _with_definitions(schema: Any, root: Mapping[str, Any]) -> Any:
    """Return `schema`, a part of `root`, with the definitions that it may reference."""
    kept = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**kept, **schema} if isinstance(schema, Mapping) else schema


def _json_rule(schema: Any) -> str:
    checked = checked_schema(schema)
    found = checked.schema if isinstance(checked.schema, dict) else {}
    return "%json " + json.dumps({**found, "x-guidance": GUIDANCE})


def spelled(text: str, tokenizer: Tokenizer) -> str:
    """Write `text` in Lark, with the control tokens it contains as tokens."""
    parts: list[str] = []
    plain = b""
    for id in tokenizer.encode(text, add_special=False, first=False):
        if tokenizer.is_control(id):
            if plain:
                parts.append(json.dumps(plain.decode()))
            parts.append(f"<[{id}]>")
            plain = b""
        else:
            plain += tokenizer.piece(id)
    if plain:
        parts.append(json.dumps(plain.decode()))
    return " ".join(parts)
