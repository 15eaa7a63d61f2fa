"""Python functions as tools for a model: their names, parameters and descriptions."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from puna.errors import RequestError

#: The start and end of the part of a docstring that describes parameters.
_ARGUMENTS: Final = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$", re.MULTILINE)
_SECTION: Final = re.compile(r"^[A-Z][A-Za-z ]*:\s*$", re.MULTILINE)
_ARGUMENT: Final = re.compile(r"^(\s+)\*{0,2}(\w+)(?:\s*\([^\n]*?\))?\s*:\s*(\S.*)$")


def checked_tools(tools: Any) -> list[dict[str, Any]]:
    """Return tools as mappings, functions as `tool_of` describes them. Raises `RequestError`."""
    if tools is None:
        return []
    if isinstance(tools, str | bytes | Mapping) or callable(tools) or not isinstance(tools, Iterable):
        raise RequestError(
            f"tools must be a list of functions or mappings, not {type(tools).__name__}; use [...]"
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
    """Describe a function as a tool: its name, the types in its signature, and its docstring.

    Parameters without a default are required. Descriptions come from an "Args:" section with lines
    `name: description` or `name (type): description`. Raises `RequestError` for parameters that a call by
    name with JSON values cannot pass: positional-only ones, `*args`, `**kwargs`, and types without JSON.
    """
    name = getattr(function, "__name__", type(function).__name__)
    try:
        parameters = inspect.signature(function).parameters
        hints = typing.get_type_hints(function, include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise RequestError(f"tool {name} has no readable signature ({error})") from None
    text = inspect.getdoc(function) or ""
    about, descriptions = _docstring(text)
    properties: dict[str, Any] = {}
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RequestError(
                f"tool {name} has the parameter {parameter}, which a call by name cannot pass; "
                "name each parameter"
            )
        schema = _schema(name, parameter.name, hints.get(parameter.name, str))
        if parameter.name in descriptions:
            schema["description"] = descriptions[parameter.name]
        properties[parameter.name] = schema
    required = [each.name for each in parameters.values() if each.default is each.empty]
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": about,
            "parameters": {"type": "object", "properties": properties, "required": required},
        },
    }


def arguments_of(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a call's JSON values to the types of the function's parameters. Raises `RequestError`.

    A parameter of type `date` gets a date, one of a pydantic class an object of it.
    """
    from pydantic import TypeAdapter, ValidationError

    parameters = inspect.signature(function).parameters
    hints = typing.get_type_hints(function, include_extras=True)
    missing = [each.name for each in parameters.values() if each.default is each.empty]
    if problems := [name for name in missing if name not in arguments]:
        raise RequestError(f"the call lacks {', '.join(problems)}")
    converted = {}
    for name, value in arguments.items():
        if name not in parameters:
            raise RequestError(f"there is no parameter {name}; the parameters are {', '.join(parameters)}")
        try:
            converted[name] = TypeAdapter(hints.get(name, Any)).validate_python(value)
        except ValidationError as error:
            raise RequestError(f"{name}: {error.errors()[0]['msg']}") from None
    return converted


def _schema(tool: str, parameter: str, hint: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(hint).json_schema()
    except PydanticUserError:
        raise RequestError(
            f"tool {tool}: parameter {parameter} has a type without a JSON schema: {hint!r}"
        ) from None


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return a docstring's descriptions of a function and of each of its parameters."""
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
