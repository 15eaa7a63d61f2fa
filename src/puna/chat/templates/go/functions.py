"""Functions that templates may call; the evaluator has `and` and `or`, which stop early."""

from __future__ import annotations

import datetime
import html
import json
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from puna.chat.templates.go.values import (
    MISSING,
    Missing,
    Record,
    format_float,
    format_value,
    is_true,
    to_json,
    type_name,
)

#: Widths and precisions beyond this are refused, as Go does (with a larger bound).
MAX_WIDTH = 10_000

_VERB = re.compile(r"%([-+# 0]*)(\*|\d+)?(?:\.(\*|\d*))?(.)", re.DOTALL)


def sprint(values: Sequence[Any]) -> str:
    """Concatenate values, with a space between two that are not strings."""
    parts: list[str] = []
    for i, value in enumerate(values):
        if i and not isinstance(value, str) and not isinstance(values[i - 1], str):
            parts.append(" ")
        parts.append(format_value(value))
    return "".join(parts)


def sprintln(values: Sequence[Any]) -> str:
    return " ".join(format_value(value) for value in values) + "\n"


def sprintf(format: str, values: Sequence[Any]) -> str:
    """Format as Go's Sprintf does; mistakes appear in the text (`%!d(string=x)`, `%!s(MISSING)`)."""
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
    """Return a Go string literal, which equals JSON for everything that templates print."""
    return json.dumps(text, ensure_ascii=False)


class CallError(Exception):
    """Arguments that a function cannot handle; the evaluator adds the position."""


Function = Callable[..., Any]


def _kind(value: Any) -> str | None:
    for kind, name in ((bool, "bool"), (int, "int"), (float, "float"), (str, "string")):
        if isinstance(value, kind):
            return name
    return None


def _eq(first: Any, *others: Any) -> bool:
    if not others:
        raise CallError("missing argument for comparison")
    return any(_equal(first, other) for other in others)


def _equal(a: Any, b: Any) -> bool:
    kind_a, kind_b = _kind(a), _kind(b)
    absent_a, absent_b = (value is None or value is MISSING for value in (a, b))
    if absent_a or absent_b:
        return absent_a and absent_b
    if kind_a != kind_b:
        raise CallError("incompatible types for comparison")
    if kind_a is None:
        raise CallError(f"non-comparable type {type_name(a)}")
    return bool(a == b)


def _lt(a: Any, b: Any) -> bool:
    kind_a, kind_b = _kind(a), _kind(b)
    if kind_a is None or kind_b is None or kind_a == kind_b == "bool":
        raise CallError("invalid type for comparison")
    if kind_a != kind_b:
        raise CallError("incompatible types for comparison")
    if isinstance(a, str):
        return a.encode("utf-8", "replace") < str(b).encode("utf-8", "replace")
    return bool(a < b)


def _le(a: Any, b: Any) -> bool:
    return _lt(a, b) or _equal(a, b)


def _len(value: Any) -> int:
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, list | dict):
        return len(value)
    raise CallError(f"len of type {type_name(value)}")


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        if value is None or isinstance(value, Missing):
            return MISSING
        if isinstance(value, dict):
            if not isinstance(key, str):
                raise CallError(f"value has type {type_name(key)}; should be string")
            value = value.get(key, MISSING)
        elif isinstance(value, list | str):
            items: Any = value.encode("utf-8", "replace") if isinstance(value, str) else value
            value = items[_position(key, len(items), inclusive=False)]
        else:
            raise CallError(f"can't index item of type {type_name(value)}")
    return value


def _slice(value: Any, *bounds: Any) -> Any:
    if not isinstance(value, list | str):
        raise CallError(f"can't slice item of type {type_name(value)}")
    if len(bounds) > 3 or (len(bounds) == 3 and isinstance(value, str)):
        raise CallError(f"too many slice indexes: {len(bounds)}")
    items: Any = value.encode("utf-8", "replace") if isinstance(value, str) else value
    positions = [_position(bound, len(items), inclusive=True) for bound in bounds]
    start, end = (positions + [0, len(items)][len(positions) :])[:2]
    if start > end:
        raise CallError(f"invalid slice index: {start} > {end}")
    part = items[start:end]
    return part.decode("utf-8", "replace") if isinstance(value, str) else list(part)


def _position(key: Any, length: int, *, inclusive: bool) -> int:
    if isinstance(key, bool) or not isinstance(key, int):
        raise CallError(f"cannot index with type {type_name(key)}")
    if not 0 <= key < length + inclusive:
        raise CallError(f"index out of range: {key}")
    return key


def _html(*values: Any) -> str:
    text = html.escape(_joined(values))
    return text.replace("&quot;", "&#34;").replace("&#x27;", "&#39;").replace("\0", "\ufffd")


_JS = {
    "\\": "\\\\", "'": "\\'", '"': '\\"', "<": "\\u003C", ">": "\\u003E", "&": "\\u0026", "=": "\\u003D",
}  # fmt: skip


def _js(*values: Any) -> str:
    parts = []
    for character in _joined(values):
        code = ord(character)
        printable = character.isprintable() if code > 127 else code >= 32
        parts.append(_JS.get(character) or (character if printable else f"\\u{code:04X}"))
    return "".join(parts)


def _urlquery(*values: Any) -> str:
    return urllib.parse.quote_plus(_joined(values), safe="-_.~", errors="replace")


def _joined(values: tuple[Any, ...]) -> str:
    return values[0] if len(values) == 1 and isinstance(values[0], str) else sprint(values)


def _call(*values: Any) -> Any:
    raise CallError("call of something that is not a function")


def _printf(format: Any = MISSING, *values: Any) -> str:
    if not isinstance(format, str):
        raise CallError(f"wrong type for the format: expected string; got {type_name(format)}")
    return sprintf(format, values)


def _day(days_ago: int) -> str:
    return (datetime.date.today() - datetime.timedelta(days=days_ago)).isoformat()


def typescript_type(value: Any) -> str:
    """Return the TypeScript type of a tool's parameter: `string`, `number[]`, `string | null`, else `any`."""
    if not isinstance(value, Record) or value.kind != "api.ToolProperty":
        return "any"
    return _typescript(value.json)


def _typescript(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    branches = schema.get("anyOf")
    if isinstance(branches, list) and branches:
        return " | ".join(_typescript(branch) for branch in branches)
    declared = schema.get("type")
    kinds = [declared] if isinstance(declared, str) else declared or []
    return " | ".join(_typescript_name(str(kind), schema) for kind in kinds) or "any"


def _typescript_name(kind: str, schema: Mapping[str, Any]) -> str:
    if kind == "array":
        items = schema.get("items")
        inner = _typescript(items) if isinstance(items, Mapping) else "any"
        return f"({inner})[]" if " | " in inner else f"{inner}[]"
    names = {"integer": "number", "object": "Record<string, any>"}
    if kind in ("string", "number", "boolean", "null"):
        return kind
    return names.get(kind, "any")


FUNCTIONS: dict[str, Function] = {
    "not": lambda value: not is_true(value),
    "eq": _eq,
    "ne": lambda a, b: not _equal(a, b),
    "lt": _lt,
    "le": _le,
    "gt": lambda a, b: not _le(a, b),
    "ge": lambda a, b: not _lt(a, b),
    "len": _len,
    "index": _index,
    "slice": _slice,
    "print": lambda *values: sprint(values),
    "printf": _printf,
    "println": lambda *values: sprintln(values),
    "html": _html,
    "js": _js,
    "urlquery": _urlquery,
    "call": _call,
    "json": to_json,
    "currentDate": lambda *ignored: _day(0),
    "yesterdayDate": lambda *ignored: _day(1),
    "toTypeScriptType": typescript_type,
}

#: Minimum and maximum number of arguments; None: any number.
ARITY: dict[str, tuple[int, int | None]] = {
    "not": (1, 1), "eq": (1, None), "ne": (2, 2), "lt": (2, 2), "le": (2, 2), "gt": (2, 2), "ge": (2, 2),
    "len": (1, 1), "index": (1, None), "slice": (1, None), "printf": (1, None), "call": (1, None),
    "json": (1, 1), "toTypeScriptType": (1, 1), "and": (1, None), "or": (1, None),
}  # fmt: skip

NAMES = frozenset(FUNCTIONS) | {"and", "or"}
