"""The tools a request offers, as far as reading calls of them needs to know."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any, Final

from puna.chat.answers.json_text import is_number, parsed

#: References that are followed from one schema; more lead in circles.
_MAX_REFERENCES: Final = 16

#: Types as JSON Schema names them, in the order in which a text is tried as a value of one.
_ORDER: Final = ("boolean", "integer", "number", "array", "object", "string")

_INTEGER: Final = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)


class Tool:
    """A function that may be called: its name, and the JSON schema of its arguments."""

    def __init__(self, name: str, parameters: Any = None) -> None:
        self.name = name
        self.parameters: Mapping[str, Any] = parameters if isinstance(parameters, Mapping) else {}

    @cached_property
    def properties(self) -> Mapping[str, Any]:
        found = self.resolved(self.parameters).get("properties")
        return found if isinstance(found, Mapping) else {}

    def types(self, parameter: str) -> list[str]:
        """The types that values of a parameter may have; empty when nothing is said about it."""
        return self.types_of(self.properties.get(parameter))

    def types_of(self, schema: Any) -> list[str]:
        """The types of values that a schema within the parameters names."""
        found: set[str] = set()
        waiting, seen = [schema], set[int]()
        while waiting:
            branch = waiting.pop()
            if not isinstance(branch, Mapping):
                continue
            branch = self.resolved(branch)
            if id(branch) in seen:  # unions may lead back to themselves, or to one schema again and again
                continue
            seen.add(id(branch))
            found |= _types_said(branch)
            for keyword in ("anyOf", "oneOf", "allOf"):
                branches = branch.get(keyword)
                waiting += branches if isinstance(branches, list) else ()
        return [kind for kind in (*_ORDER, "null") if kind in found]

    def value(self, parameter: str, text: str) -> str:
        """`text`, which the model wrote without saying of which type it is, as JSON.

        The types of the parameter's schema decide; what is a value of none of them is a string.
        """
        if text.strip().lower() == "null":
            return "null"
        types = self.types(parameter)
        for kind in types:
            if (value := _as(kind, text.strip())) is not None:
                return value
        return "false" if types == ["boolean"] else dumps(text)

    def resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        """The schema that references within the parameters lead to."""
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
    """The functions of a request's `tools`, by name. What is no function is left out."""
    found: dict[str, Tool] = {}
    for each in given:
        function = each.get("function")
        if isinstance(function, Mapping) and isinstance(name := function.get("name"), str) and name:
            found[name] = Tool(name, function.get("parameters"))
    return found


def dumps(value: Any) -> str:
    """JSON of a value that was no JSON before."""
    return json.dumps(value, ensure_ascii=False)


def _as(kind: str, text: str) -> str | None:
    """`text` as JSON of this type; None if it is none."""
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
    """The types that a schema names itself, or those of its values."""
    kind = schema.get("type")
    if kind is not None:
        return {one for one in (kind if isinstance(kind, list) else [kind]) if isinstance(one, str)}
    listed = schema.get("enum")
    found = set(map(_type_of, listed if isinstance(listed, list) else ()))
    return found | {_type_of(schema["const"])} if "const" in schema else found


def has_type(value: Any, types: Collection[str]) -> bool:
    """Whether a value is of one of these types, as JSON Schema has it."""
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
