"""JSON with comments and trailing commas, edited in place: all but the changed value stays as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_SPACE = re.compile(r"(?:\s+|//[^\n]*|/\*.*?\*/)*", re.S)
_SCALAR = re.compile(r'"(?:[^"\\\n]|\\.)*"|-?\d[\d.eE+-]*|true|false|null')
_REST_OF_LINE = re.compile(r"[ \t]*//[^\n]*(?=\n)")


class JsonError(ValueError):
    """A text is not JSON with comments; the message says where."""


@dataclass
class _Value:
    """A value and its place in the text: `members` of an object, `items` of an array."""

    begin: int
    end: int
    value: Any
    members: dict[str, _Value] = field(default_factory=dict)
    items: list[_Value] = field(default_factory=list)


def read_json(text: str) -> Any:
    """Return the value of `text`. Raises JsonError."""
    return _parse(text).value


def with_value(text: str, keys: Sequence[str], value: Any) -> str:
    """Return `text` with `value` under `keys`, the names of nested objects; missing objects are added.

    A `value` of type `NamedItem` is put into an array. Raises JsonError, also if the text has another type
    where `keys` need an object or an array.
    """
    at = _parse(text if text.strip() else "{}")
    text = text if text.strip() else "{}\n"
    for depth, key in enumerate(keys):
        if not isinstance(at.value, dict):
            raise JsonError(f"{_place(keys[:depth])} is not an object")
        found = at.members.get(key)
        if found is None:
            return _insert(text, at, f"{json.dumps(key)}: ", _nested(keys[depth + 1 :], value))
        at = found
    if not isinstance(value, NamedItem):
        return _replace(text, at, value)
    if not isinstance(at.value, list):
        raise JsonError(f"{_place(keys)} is not an array")
    for item in at.items:
        if isinstance(item.value, dict) and item.value.get(value.name) == value.fields[value.name]:
            return _replace(text, item, value.fields)
    return _insert(text, at, "", value.fields)


@dataclass(frozen=True)
class NamedItem:
    """An object in an array, known by its field `name`: it replaces the one with the same value there."""

    name: str
    fields: Mapping[str, Any]


def _place(keys: Sequence[str]) -> str:
    return ".".join(keys) or "the file"


def _nested(keys: Sequence[str], value: Any) -> Any:
    value = [value.fields] if isinstance(value, NamedItem) else value
    for key in reversed(keys):
        value = {key: value}
    return value


def _replace(text: str, at: _Value, value: Any) -> str:
    if json.dumps(at.value) == json.dumps(value):
        return text
    return text[: at.begin] + _written(value, _indent(text, at.begin)) + text[at.end :]


def _insert(text: str, at: _Value, name: str, value: Any) -> str:
    """Insert a member or an item at the beginning, where no comma or comment can be in the way."""
    inside = [*at.members.values(), *at.items]
    begin = at.begin + 1
    outer = _indent(text, at.begin)
    inner = outer + "  "
    if inside and "\n" in text[begin : inside[0].begin]:
        inner = _indent(text, inside[0].begin)
        if comment := _REST_OF_LINE.match(text, begin):
            begin = comment.end()
    elif inside:  # all on one line
        return f"{text[:begin]}{name}{json.dumps(value, ensure_ascii=False)}, {text[begin:].lstrip()}"
    new = f"\n{inner}{name}{_written(value, inner)}"
    if inside:
        return f"{text[:begin]}{new},{text[begin:]}"
    rest = text[begin:]
    return f"{text[:begin]}{new}" + (rest if "\n" in text[begin : at.end] else f"\n{outer}{rest}")


def _indent(text: str, position: int) -> str:
    """Return the white space that begins the line at `position`."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip())]


def _written(value: Any, indent: str) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False).replace("\n", f"\n{indent}")


def _parse(text: str) -> _Value:
    position = _skip(text, 0)
    try:
        found = _value(text, position)
    except RecursionError:
        raise JsonError("nested too deeply") from None
    end = _skip(text, found.end)
    if end != len(text):
        raise _error(text, end, "more text")
    return found


def _value(text: str, begin: int) -> _Value:
    if text.startswith("{", begin):
        return _object(text, begin)
    if text.startswith("[", begin):
        return _array(text, begin)
    found = _SCALAR.match(text, begin)
    try:
        value = json.loads(found[0]) if found else None
    except ValueError:
        found = None
    if found is None:
        raise _error(text, begin, "no value")
    return _Value(begin, found.end(), value)


def _object(text: str, begin: int) -> _Value:
    found = _Value(begin, begin, {})
    position = _skip(text, begin + 1)
    while not text.startswith("}", position):
        key = _SCALAR.match(text, position)
        if key is None or not key[0].startswith('"'):
            raise _error(text, position, "no name of a value")
        colon = _skip(text, key.end())
        if not text.startswith(":", colon):
            raise _error(text, colon, "no colon")
        member = _value(text, _skip(text, colon + 1))
        name = json.loads(key[0], strict=False)
        found.members[name], found.value[name] = member, member.value
        position = _after_comma(text, member.end, "}")
    found.end = position + 1
    return found


def _array(text: str, begin: int) -> _Value:
    found = _Value(begin, begin, [])
    position = _skip(text, begin + 1)
    while not text.startswith("]", position):
        item = _value(text, position)
        found.items.append(item)
        found.value.append(item.value)
        position = _after_comma(text, item.end, "]")
    found.end = position + 1
    return found


def _after_comma(text: str, position: int, close: str) -> int:
    position = _skip(text, position)
    if text.startswith(",", position):
        return _skip(text, position + 1)
    if not text.startswith(close, position):
        raise _error(text, position, f"neither a comma nor '{close}'")
    return position


def _skip(text: str, position: int) -> int:
    """Return the position after white space and comments."""
    found = _SPACE.match(text, position)
    return found.end() if found else position


def _error(text: str, position: int, missing: str) -> JsonError:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return JsonError(f"line {line}, column {column}: there is {missing}")
