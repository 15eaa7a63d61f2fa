"""Strings written without quotes: regular expressions of the values that a schema allows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from puna.grammar.keywords import CONSTRAINING, kept

_DATE: Final = "[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME: Final = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z"
_BYTE: Final = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_HOST: Final = r"([a-z0-9]{1,40}\.){1,4}[a-z]{2,10}"

#: Patterns of string formats, narrower than their definitions, so that every match is valid.
_FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P([0-9]{1,4}D|T[0-9]{1,4}[HMS])",
    "email": f"[a-z0-9][a-z0-9._-]{{0,40}}[a-z0-9]@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "ipv6": "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}",
    "uri": rf"https?://{_HOST}(/[A-Za-z0-9._~-]*)*(\?[A-Za-z0-9=&._~-]*)?",
}

_KNOWN: Final = frozenset(("type", "enum", "const", "pattern", "minLength", "maxLength", "format"))

_BLANK: Final = r"[\s\x1c-\x1f]*"

#: Patterns of texts that would be read as another type, by type; wider than their definitions.
_LOOKS: Final = {
    "null": "[nN][uU][lL][lL]",
    "boolean": "([tT][rR][uU][eE]|[fF][aA][lL][sS][eE])",
    "integer": "-?[0-9]+",
    "number": "-?[0-9]+([.][0-9]+)?([eE][-+]?[0-9]+)?",
    "array": r"\[(?s:.*)",
    "object": r"\{(?s:.*)",
}


class Unwritable(Exception):  # noqa: N818 (it becomes an error of the request)
    """A keyword without a counterpart here, named by the message."""


def text_terminal(schema: Mapping[str, Any]) -> str:
    """Return the right-hand side of a Lark terminal for the strings of `schema`. Raises `Unwritable`."""
    for keyword in schema.keys() & CONSTRAINING - _KNOWN:
        raise Unwritable(f'the keyword "{keyword}"')
    parts = ["ANY"]
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        parts.append("(" + " | ".join(json.dumps(value) for value in values if isinstance(value, str)) + ")")
    if isinstance(pattern := schema.get("pattern"), str):
        parts.append(f"/{_slashed(_anywhere(pattern))}/")
    least, most = (schema.get(f"{bound}Length") for bound in ("min", "max"))
    if least is not None or most is not None:
        most = "" if most is None or not kept("maxLength", most) else int(most)
        parts.append(f"/(?s:.{{{int(least or 0)},{most}}})/")
    if isinstance(kind := schema.get("format"), str) and kind in _FORMATS:
        parts.append(f"/{_slashed(_FORMATS[kind])}/")
    return " & ".join(parts)


def looks_other(kinds: Iterable[str]) -> list[str]:
    """Return Lark patterns of the texts that would be read as a value of one of these types."""
    return [f"/{_BLANK}({_LOOKS[kind]}){_BLANK}/" for kind in kinds if kind in _LOOKS]


def _anywhere(pattern: str) -> str:
    """Turn a pattern that is searched for into one of the whole text."""
    begins = pattern.startswith("^")
    ends = pattern.endswith("$") and not pattern.endswith("\\$")
    middle = pattern[begins : len(pattern) - ends]
    return f"{'' if begins else '(?s:.*)'}({middle}){'' if ends else '(?s:.*)'}"


def _slashed(pattern: str) -> str:
    """Escape the slashes that would end the pattern."""
    parts = pattern.split("\\\\")
    return "\\\\".join(part.replace("\\/", "/").replace("/", "\\/") for part in parts)
