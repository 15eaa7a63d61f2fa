"""Python functions as tools: their names, parameters and descriptions, for a model to call."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from puna.errors import RequestError

#: Where a docstring describes parameters, and where that ends.
_ARGUMENTS: Final = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$", re.MULTILINE)
_SECTION: Final = re.compile(r"^[A-Z][A-Za-z ]*:\s*$", re.MULTILINE)
_ARGUMENT: Final = re.compile(r"^(\s+)\*{0,2}(\w+)(?:\s*\([^\n]*?\))?\s*:\s*(\S.*)$")


def checked_tools(tools: Any) -> list[dict[str, Any]]:
    """Return tools as mappings, functions as `tool_of` describes them. Raises `RequestError`."""
    if tools is None:
        return []
    if isinstance(tools, str | bytes | Mapping) or callable(tools) or not isinstance(tools, Iterable):
        raise RequestError(
            f"tools are a list of functions or mappings, not {type(tools).__name__}; use [...]"
        )
    found = []
    for number, tool in enumerate(tools, 1):
        if isinstance(tool, Mapping):
            found.append(dict(tool))
        elif callable(tool):
            found.append(tool_of(tool))
        else:
            raise RequestError(f"tool {number} must be a function or a mapping, not {tool!r}")
    return found


def tool_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Describe a function as a tool: by its name, its signature's types, and its docstring.

    Parameters without a default are required. Their descriptions are those of an "Args:" section, written
    `name: description` or `name (type): description`. Raises `RequestError` for what a call by name with JSON
    values cannot give: parameters by position only, `*args`, `**kwargs`, and types that JSON has not.
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        parameters = inspect.signature(function).parameters
        hints = typing.get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise RequestError(f"the tool {name} has no signature that can be read ({error})") from None
    text = inspect.getdoc(function) or ""
    about, descriptions = _docstring(text)
    properties: dict[str, Any] = {}
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RequestError(
                f"the tool {name} has the parameter {parameter}, which a call by name cannot give; "
                "name each parameter"
            )
        schema = _schema(name, parameter.name, hints.get(parameter.name, str))
        if parameter.name in descriptions:
            schema["description"] = descriptions[parameter.name]
        properties[parameter.name] = schema
    required = [one.name for one in parameters.values() if one.default is one.empty]
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


def _schema(tool: str, parameter: str, hint: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(hint).json_schema()
    except PydanticUserError:
        raise RequestError(
            f"the tool {tool}: parameter {parameter} is of a type that JSON has not: {hint!r}"
        ) from None


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return what a docstring says of a function, and of each of its parameters."""
    found = _ARGUMENTS.search(text)
    about = _SECTION.split(text, maxsplit=1)[0].strip()
    if found is None:
        return about, {}
    section = _SECTION.split(text[found.end() :], maxsplit=1)[0]
    descriptions: dict[str, str] = {}
    indent, current = "", ""
    for line in section.splitlines():
        argument = _ARGUMENT.match(line)
        if argument is not None and (not indent or argument[1] == indent):
            indent, current = argument[1], argument[2]
            descriptions[current] = argument[3].strip()
        elif current and line.strip():
            descriptions[current] += f" {line.strip()}"
    return about, descriptions
