"""Grammars of tool calls with valid arguments, in a family's own markup."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from puna.chat.answers.family import Reading
from puna.chat.answers.parts import Form, ParameterForm
from puna.chat.answers.tools import Tool, dumps, has_type
from puna.errors import RequestError, shown
from puna.grammar.call_names import Names, Spell
from puna.grammar.diagnosis import GUIDANCE, check_parts, check_patterns, check_terminal
from puna.grammar.keywords import CONSTRAINING, kept
from puna.grammar.schema import checked_schema
from puna.grammar.text_values import Unwritable, looks_other, text_terminal
from puna.tokenizer import Tokenizer

#: Calls in one answer if a grammar governs them.
MAX_CALLS: Final = 64

#: Keywords supported in an object's schema if each parameter has its own markup.
_OF_PARAMETERS: Final = frozenset(("type", "properties", "required", "additionalProperties"))

#: Keywords of objects and lists within a parameter that are written as elements; others are written as JSON.
_OF_ELEMENTS: Final = {
    "object": _OF_PARAMETERS,
    "array": frozenset(("type", "items", "minItems", "maxItems")),
}

#: Types of values that may have no elements, which do not tell them apart.
_LOOK_ALIKE: Final = frozenset(("object", "array", "string"))


def calls_grammar(reading: Reading, spell: Spell) -> str:
    """Return the Lark grammar of answers that call tools according to `reading.choice`.

    Raises a `RequestError` that names the tool and what is wrong with its parameters.
    """
    syntax, tools = reading.family.calls, _chosen(reading)
    if syntax is None:
        raise RequestError("this model's template has no place for tools: it cannot be made to call one")
    writer = _Writer(syntax.form, spell, Names(reading, syntax.form, spell))
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
    names: Names
    start: str = ""
    rules: list[str] = field(default_factory=list)
    #: Rules of objects and lists by their elements, by the identity of the schema, which is kept alive.
    containers: dict[int, tuple[str, Any]] = field(default_factory=dict)

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
        name = self.names.of_tool(tool.name)
        with _of_tool(tool):
            check_patterns(checked_schema(dict(tool.parameters)).patterns)
            if form.parameters is None:
                arguments = _json_rule(_as_object(tool.parameters))
            else:
                for keyword in tool.parameters.keys() & CONSTRAINING - _OF_PARAMETERS:
                    raise RequestError(
                        f'the keyword "{keyword}" at # is not supported in calls of this model'
                    )
                arguments = self._parameters(f"{number}", tool, tool.parameters, form.parameters, "#")
        self.rules.append(
            f"body_{number}: {self._spelled(name + form.after)} {arguments} {self._spelled(form.closing)}"
        )
        self.rules.append(f"tool_{number}: {self._spelled(form.before)} body_{number}")

    def _parameters(
        self, prefix: str, tool: Tool, schema: Mapping[str, Any], form: ParameterForm, place: str
    ) -> str:
        """Return the rule of all parameters in the schema's order, where optional ones may be missing."""
        listed, parts = schema.get("required"), schema.get("properties")
        required = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
        properties = {**dict.fromkeys(required, True), **(parts if isinstance(parts, Mapping) else {})}
        names = [
            name
            for name, part in properties.items()
            if name in required or (part is not False and _branches(tool, part, _place(place, name)))
        ]
        for name in names:
            self.names.check_parameter(name, place)
        between = self._spelled(form.between)
        # From the last parameter backwards: the rule if none was written before, and if some were.
        none, some = '""', '""'
        for number, name in reversed(list(enumerate(names))):
            rule = f"p_{prefix}_{number}"
            ways = self._parameter(rule, tool, name, properties[name], form, _place(place, name))
            self.rules.append(f"{rule}: {ways}")
            first, later = f"n_{prefix}_{number}", f"s_{prefix}_{number}"
            skips = name not in required
            self.rules.append(f"{first}: {rule} {some}" + (f" | {none}" if skips else ""))
            self.rules.append(f"{later}: {between} {rule} {some}" + (f" | {some}" if skips else ""))
            none, some = first, later
        return none

    def _parameter(
        self, rule: str, tool: Tool, name: str, schema: Any, form: ParameterForm, place: str
    ) -> str:
        is_plain = '" string="true"' in form.after_key
        ways: list[str] = []
        branches = _branches(tool, schema, place)
        if not branches:
            raise RequestError(f"no value satisfies the schema at {place}")
        others: list[str] = []
        if form.untyped and not is_plain:
            others = [kind for kind in tool.types_of(schema) if kind != "string"]
            written = [way for way in branches if not _is_read_otherwise(tool, schema, *way)]
            branches = written or branches
        # Only a value that must be a string may begin like an element.
        nests = bool(form.item) and tool.types_of(schema) != ["string"]
        # What could be read as another branch is written as JSON.
        kinds = [kind for _, branch in branches for kind in tool.types_of(branch) if kind in _LOOK_ALIKE]
        has_elements = nests and len(kinds) == 1
        for kind, branch in branches:
            if kind == "string" and form.quotes is not None:
                terminal = f"{rule}_{len(ways)}".upper()
                ways.append(self._text(terminal, name, branch, form, place, others, nests=nests))
                continue
            opening, closing = form.quotes if form.quotes is not None and form.untyped else ("", "")
            after = form.after_key.replace("true", "false") if is_plain else form.after_key
            key = self._spelled(form.key + name + after + opening)
            end = self._spelled(closing + form.closing_of(name))
            bodies, rest = self._elements(tool, branch, form, place) if has_elements else ([], branch)
            if rest is not None:
                bodies = [*bodies, _json_rule(_with_definitions(rest, tool.parameters))]
            ways += [f"{key} {body} {end}" for body in bodies]
        return " | ".join(ways)

    def _elements(
        self, tool: Tool, schema: Any, form: ParameterForm, place: str
    ) -> tuple[list[str], dict[str, Any] | None]:
        """Return the rule of an object or list by its elements, and the schema of other values, if any."""
        types = tool.types_of(schema)
        for kind, part in (("object", "properties"), ("array", "items")):
            inner = schema.get(part)
            written = schema.keys() & CONSTRAINING <= _OF_ELEMENTS[kind]
            if kind in types and written and isinstance(inner, Mapping) and inner:
                others = [other for other in types if other != kind]
                rule = self._container(kind, tool, schema, form, place)
                return [rule], {**schema, "type": others} if others else None
        return [], schema

    def _container(self, kind: str, tool: Tool, schema: Any, form: ParameterForm, place: str) -> str:
        """Return the rule of the elements of an object or list, which may contain itself."""
        if known := self.containers.get(id(schema)):
            return known[0]
        prefix = f"e{len(self.containers)}"
        self.containers[id(schema)] = prefix, schema
        if kind == "object":
            self.rules.append(f"{prefix}: {self._parameters(prefix, tool, schema, form, place)}")
            return prefix
        item = f"p_{prefix}"
        ways = self._parameter(item, tool, form.item, schema["items"], form, f"{place}/items")
        self.rules.append(f"{item}: {ways}")
        least, most = int(schema.get("minItems") or 0), schema.get("maxItems")
        if most is not None and kept("maxItems", most):
            self.rules.append(f"{prefix}: {item}{{{least},{int(most)}}}")
        else:
            first = f"{item}{{{least},{least}}} " if least else ""
            self.rules.append(f"{prefix}: {first}{item}*")
        return prefix

    def _text(
        self,
        terminal: str,
        name: str,
        schema: Any,
        form: ParameterForm,
        place: str,
        others: list[str],
        *,
        nests: bool,
    ) -> str:
        """Return the rule of a string, written verbatim, of a parameter that may also have types `others`.

        With `nests`, what looks like an element would be read as one.
        """
        assert form.quotes is not None
        opening, closing = form.quotes
        closing += form.closing_of(name)
        try:
            value = text_terminal(schema if isinstance(schema, Mapping) else {})
        except Unwritable as error:
            raise RequestError(f"{error} at {place} is not supported in calls of this model") from None
        excluded = []
        mark = closing.strip()
        if form.untyped:  # else it would be read as another type, or without its line breaks
            excluded += [f"~{look}" for look in looks_other(dict.fromkeys(("null", *others)))]
            if not opening.endswith("\n") and not form.exact:
                excluded += [r"~/\n(?s:.*)/", r"~/(?s:.*)\n/"]
        if nests:
            excluded.append(f"~(ANY {json.dumps(form.key)} ANY)")
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


def _place(place: str, name: str) -> str:
    return f"{place}/properties/{name}"


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


def _is_read_otherwise(tool: Tool, whole: Any, kind: str, schema: Any) -> bool:
    """Return whether every string to choose from would be read as another type of the `whole` schema."""
    if kind != "string" or not isinstance(schema, Mapping):
        return False
    values = schema.get("enum")
    return isinstance(values, list) and all(tool.value_of(whole, value) != dumps(value) for value in values)


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
