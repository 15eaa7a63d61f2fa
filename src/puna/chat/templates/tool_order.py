"""One order of tools and of the keys in their descriptions, so that equal tools make equal prompts.

Clients collect tools from several sources and write schemas through maps, so that their order may change
from one request to the next. It has no meaning, but tools come first in most prompts, and nothing after a
difference can be reused. Names of properties keep their order: models write arguments in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

_TOOL: Final = ("type", "function")
_FUNCTION: Final = ("name", "description", "parameters")
#: As most schemas are written; other keywords follow in alphabetical order.
_SCHEMA: Final = (
    *("$ref", "type", "title", "description", "enum", "const", "format", "default"),
    *("anyOf", "oneOf", "allOf", "items", "properties", "required", "additionalProperties"),
)
#: Keywords whose value is a schema or a list of them, and those whose value has schemas by name.
_INNER: Final = frozenset(
    (
        *("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "items", "prefixItems", "contains"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames", "additionalItems"),
    )
)
_NAMED: Final = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))


def ordered(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools in the order of their names, with keys in one order and nothing else changed."""
    return sorted((_tool(tool) for tool in tools), key=_name)


def _name(tool: Mapping[str, Any]) -> str:
    function = tool.get("function")
    return str(function.get("name", "")) if isinstance(function, Mapping) else ""


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    made = _arranged(tool, _TOOL)
    if isinstance(function := made.get("function"), Mapping):
        made["function"] = described = _arranged(function, _FUNCTION)
        if "parameters" in described:
            described["parameters"] = _schema(described["parameters"])
    return made


def _schema(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_schema(one) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    made = _arranged(schema, _SCHEMA)
    for key, value in made.items():
        if key in _INNER:
            made[key] = _schema(value)
        elif key in _NAMED and isinstance(value, Mapping):
            made[key] = {name: _schema(one) for name, one in value.items()}
    return made


def _arranged(value: Mapping[str, Any], first: tuple[str, ...]) -> dict[str, Any]:
    """Return a mapping with the keys `first`, then its others in alphabetical order."""
    known = [key for key in first if key in value]
    return {key: value[key] for key in (*known, *sorted(value.keys() - set(known)))}
