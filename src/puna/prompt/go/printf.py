"""Go's Sprintf, Sprint and Sprintln for the kinds of values templates have."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from puna.prompt.go.values import MISSING, format_float, format_value, type_name

#: Widths and precisions beyond this are refused, as Go does (with a larger bound).
MAX_WIDTH = 10_000

_VERB = re.compile(r"%([-+# 0]*)(\*|\d+)?(?:\.(\*|\d*))?(.)", re.DOTALL)


def sprint(values: Sequence[Any]) -> str:
    """Values one after another, separated by a space where neither neighbour is a string."""
    parts: list[str] = []
    for i, value in enumerate(values):
        if i and not isinstance(value, str) and not isinstance(values[i - 1], str):
            parts.append(" ")
        parts.append(format_value(value))
    return "".join(parts)


def sprintln(values: Sequence[Any]) -> str:
    return " ".join(format_value(value) for value in values) + "\n"


def sprintf(format: str, values: Sequence[Any]) -> str:
    """Go's Sprintf; mistakes show in the text as Go shows them (`%!d(string=x)`, `%!s(MISSING)`)."""
    parts: list[str] = []
    at = used = 0
    for match in _VERB.finditer(format):
        parts.append(format[at : match.start()])
        at = match.end()
        flags, width_text, precision_text, verb = match.groups()
        if verb == "%":
            parts.append("%")
            continue
        numbers: list[int | None] = []
        for text in (width_text, precision_text):
            if text == "*":
                number = values[used] if used < len(values) else None
                used += 1
                numbers.append(number if isinstance(number, int) and abs(number) <= MAX_WIDTH else None)
            elif text is None:
                numbers.append(None)
            else:
                numbers.append(min(int(text[:9] or 0), MAX_WIDTH))
        if used >= len(values):
            parts.append(f"%!{verb}(MISSING)")
            continue
        width, precision = numbers
        parts.append(
            _padded(_formatted(verb, flags, precision, values[used]), flags, width, values[used], verb)
        )
        used += 1
    rest = format[at:]
    parts.append(rest[:-1] + "%!(NOVERB)" if rest.endswith("%") else rest)
    if used < len(values):
        extra = ", ".join(f"{type_name(value)}={format_value(value)}" for value in values[used:])
        parts.append(f"%!(EXTRA {extra})")
    return "".join(parts)


def _padded(text: str, flags: str, width: int | None, value: Any, verb: str) -> str:
    if width is None:
        return text
    if "-" in flags or width < 0:
        return text.ljust(abs(width))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if "0" in flags and (number or verb in "sxXq") and not text.startswith("%!"):
        sign = text[:1] if number and text[:1] in "+- " else ""
        return sign + text[len(sign) :].rjust(width - len(sign), "0")
    return text.rjust(width)


def _formatted(verb: str, flags: str, precision: int | None, value: Any) -> str:
    if verb == "T":
        return type_name(value)
    if verb == "v":
        return (
            _json_like(value)
            if "#" in flags and isinstance(value, str)
            else _signed(format_value(value), flags, value)
        )
    text: str | None = None
    if value is None or value is MISSING:
        return f"%!{verb}(<nil>)"
    if isinstance(value, bool):
        text = format_value(value) if verb == "t" else None
    elif isinstance(value, str):
        text = _string(verb, precision, value)
    elif isinstance(value, int):
        text = _integer(verb, flags, precision, value)
    elif isinstance(value, float):
        text = _float(verb, flags, precision, value)
    elif verb == "s":
        text = format_value(value)
    if text is None:
        return f"%!{verb}({type_name(value)}={format_value(value)})"
    return text


def _string(verb: str, precision: int | None, value: str) -> str | None:
    cut = value if precision is None else value[:precision]
    if verb == "s":
        return cut
    if verb == "q":
        return _json_like(cut)
    if verb in "xX":
        digits = cut.encode("utf-8", "replace").hex()
        return digits.upper() if verb == "X" else digits
    return None


def _integer(verb: str, flags: str, precision: int | None, value: int) -> str | None:
    if verb in "dboxX":
        digits = format(abs(value), verb).rjust(precision or 0, "0")
        prefix = {"b": "0b", "o": "0", "x": "0x", "X": "0X"}.get(verb, "") if "#" in flags else ""
        return _signed(("-" if value < 0 else "") + prefix + digits, flags, value)
    if verb in "cqU":
        valid = 0 <= value <= 0x10FFFF and not 0xD800 <= value < 0xE000
        if verb == "U":
            return f"U+{value:04X}"
        character = chr(value) if valid else "\ufffd"
        return character if verb == "c" else "'" + character.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return None


def _float(verb: str, flags: str, precision: int | None, value: float) -> str | None:
    if verb not in "feEgGF":
        return None
    if verb in "gG" and precision is None:
        text = format_float(value)
        text = text.upper() if verb == "G" else text
    elif value != value or value in (float("inf"), float("-inf")):
        text = format_float(value)
    else:
        kind = "f" if verb == "F" else verb
        text = format(value, f".{6 if precision is None else precision}{kind}")
    return _signed(text, flags, value)


def _signed(text: str, flags: str, value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool) and text[:1] not in "+-":
        return "+" + text if "+" in flags else " " + text if " " in flags else text
    return text


def _json_like(text: str) -> str:
    """A Go string literal; it differs from JSON in nothing a template prints."""
    return json.dumps(text, ensure_ascii=False)
