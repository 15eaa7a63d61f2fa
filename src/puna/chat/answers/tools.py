"""The tools that a request offers, as the parsers of calls need them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from puna.chat.answers.json_text import is_number, parsed

#: References followed from one schema; longer chains are circular.
_MAX_REFERENCES: Final = 16

#: JSON Schema types, in the order in which an untyped text is tried as each.
_ORDER: Final = ("boolean", "integer", "number", "array", "object", "string")

_INTEGER: Final = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)


class Tool:
    """A callable function: its name, and the JSON schema of its arguments."""

    def __init__(self, name: str, parameters: Any = None) -> None:
        self.name = name
        self.parameters: Mapping[str, Any] = parameters if isinstance(parameters, Mapping) else {}

    @cached_property
    def properties(self) -> Mapping[str, Any]:
        found = self.resolved(self.parameters).get("properties")
        return found if isinstance(found, Mapping) else {}

    def types_of(self, schema: Any) -> list[str]:
        """Return the types that a schema within the parameters names, in the order of trying them."""
        found: set[str] = set()
        for branch in self._branches(schema):
            found |= _types_said(branch)
        return [kind for kind in (*_ORDER, "null") if kind in found]

    def member(self, schema: Any, name: str) -> Any:
        """Return the schema of the member `name` of the objects that `schema` allows; None if it has none."""
        others = None
        for branch in self._branches(schema):
            properties, rest = branch.get("properties"), branch.get("additionalProperties")
            if isinstance(properties, Mapping) and name in properties:
                return properties[name]
            others = rest if isinstance(rest, Mapping) else others
        return others

    def items(self, schema: Any) -> Any:
        """Return the schema of the items of the arrays that `schema` allows; None if it has none."""
        found = (branch.get("items") for branch in self._branches(schema))
        return next((one for one in found if isinstance(one, Mapping)), None)

    def _branches(self, schema: Any) -> Iterator[Mapping[str, Any]]:
        """Yield a schema within the parameters, and each part of its unions, once."""
        waiting, seen = [schema], set[int]()
        while waiting:
            branch = waiting.pop()
            if not isinstance(branch, Mapping):
                continue
            branch = self.resolved(branch)
            if id(branch) in seen:  # unions may be recursive or repeat a schema
                continue
            seen.add(id(branch))
            yield branch
            for keyword in ("anyOf", "oneOf", "allOf"):
                branches = branch.get(keyword)
                waiting += branches if isinstance(branches, list) else ()

    def value_of(self, schema: Any, text: str) -> str:
        """Return `text`, which the model wrote without marking its type, as JSON.

        The schema, one within the parameters, decides which type is tried; a text that fits none is a string.
        """
        if text.strip().lower() == "null":
            return "null"
        types = self.types_of(schema)
        for kind in types:
            if (value := _as(kind, text.strip())) is not None:
                return value
        return "false" if types == ["boolean"] else dumps(text)

    def resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """Follow the references of `schema` within the parameters, and return the schema they lead to."""
        for _ in range(_MAX_REFERENCES):
            reference = schema.get("$ref")
            if not isinstance(reference, str) or not reference.startswith("#"):
                break
            target: Any = self.parameters
            for step in reference[1:].split("/")[1:]:
                step = step.replace("~1", "/").replace("~0", "~")
                target = target.get(step) if isinstance(target, Mapping) else None
            if not isinstance(target, Mapping):
                break
            schema = target
        return schema


def tools_of(given: Iterable[Mapping[str, Any]]) -> dict[str, Tool]:
    """Return the functions among a request's `tools`, by name."""
    found: dict[str, Tool] = {}
    for each in given:
        function = each.get("function")
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str) and name:
            found[name] = Tool(name, function.get("parameters"))
    return found


def dumps(value: Any) -> str:
    """Return `value` as JSON, without escaping non-ASCII characters."""
    return json.dumps(value, ensure_ascii=False)


def _as(kind: str, text: str) -> str | None:
    """Return `text` as JSON of type `kind`; None if it is not a value of that type."""
    match kind:
        case "boolean":
            return text.lower() if text.lower() in ("true", "false") else None
        case "integer":
            return text if _INTEGER.fullmatch(text) else None
        case "number":
            return text if is_number(text) else None
        case "array" | "object":
            try:
                value = parsed(text)
            except ValueError:
                return None
            return text if isinstance(value, list if kind == "array" else dict) else None
        case _:
            return None


def _types_said(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that a schema names itself, or those of its enum and const values."""
    kind = schema.get("type")
    if kind is not None:
        return {one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)}
    listed = schema.get("enum")
    found = set(map(_type_of, listed if isinstance(listed, list) else ()))
    return found | {_type_of(schema["const"])} if "const" in schema else found


def has_type(value: Any, types: Collection[str]) -> bool:
    """Return whether `value` has one of `types`, as JSON Schema defines them."""
    kind = _type_of(value)
    if kind == "integer" or (isinstance(value, float) and value.is_integer()):
        return "integer" in types or "number" in types
    return kind in types


def _type_of(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case list():
            return "array"
        case dict():
            return "object"
        case None:
            return "null"
        case _:
            return "string"
