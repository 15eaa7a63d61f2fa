"""JSON exactly as Go's encoder writes it and its decoder accepts it, and limits on untrusted JSON.

Digests of stored layers and prompts rendered by Go templates depend on the exact bytes: no spaces, `<`, `>`
and `&` escaped, numbers in their shortest plain form. JSON is measured as it arrives: a few megabytes of
brackets would become gigabytes of objects.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from puna.errors import shown

_ESCAPES = {
    ord("<"): "\\u003c",
    ord(">"): "\\u003e",
    ord("&"): "\\u0026",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}

#: Maximum depth, greater than that of any schema or message.
DEEPEST: Final = 100

#: Maximum number of commas, brackets and strings: the token ids of a hundred long prompts must fit.
MAX_MARKS: Final = 1_000_000

_INSIDE_STRING: Final = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")

#: Maximum characters of numbers.
_LONGEST_INTEGER = 20
_LONGEST_REAL = 1000


class JsonGauge:
    """A counter of a text's marks and depth, which checks nothing else."""

    def __init__(self, max_marks: int = MAX_MARKS) -> None:
        self._max_marks = max_marks
        self._marks = 0
        self._depth = 0
        self._in_string = False
        self._escaped = False  # the last byte was a backslash in a string

    def feed(self, data: bytes) -> None:
        """Count the next bytes. Raises ValueError when there are too many marks or levels."""
        at = 0
        if self._escaped and data:
            at, self._escaped = 1, False
        while at < len(data):
            if self._in_string:
                inside = _INSIDE_STRING.match(data, at)
                assert inside is not None  # the pattern matches the empty string
                at = inside.end() + 1
                self._in_string = inside.end() == len(data) or data[inside.end()] != ord('"')
                self._escaped = self._in_string and inside.end() < len(data)
            else:
                quote = data.find(b'"', at)
                end = len(data) if quote < 0 else quote
                self._measure(data[at:end])
                self._in_string = quote >= 0
                self._marks += self._in_string
                at = end + 1

    def _measure(self, part: bytes) -> None:
        """Count the marks outside of strings."""
        self._marks += sum(map(part.count, (b",", b"[", b"]", b"{", b"}")))
        if self._marks > self._max_marks:
            raise ValueError(f"more than {self._max_marks:,} values, names and brackets; send it in parts")
        for bracket in _BRACKET.findall(part):
            self._depth += 1 if bracket in b"[{" else -1
            if self._depth > DEEPEST:
                raise ValueError(f"nested too deeply, more than {DEEPEST} levels")


def loads(text: str) -> Any:
    """Decode `text`. Numbers have 64 bits, and lone surrogates become U+FFFD.

    Raises ValueError.
    """
    JsonGauge().feed(text.encode("utf-8", "replace"))
    value, end = first_value(text)
    if text[end:].strip(_BLANKS):
        raise ValueError(f"unexpected data after the value (character {end + 1})")
    return value


def first_value(text: str) -> tuple[Any, int]:
    """Decode the value at the start of `text` like `loads`, without a limit of depth; also return its end."""
    begin = len(text) - len(text.lstrip(_BLANKS))
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        problem = f"{error.msg[0].lower()}{error.msg[1:]}"
        raise ValueError(f"{problem} (line {error.lineno}, column {error.colno})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return (_with_valid_text(value) if "\\ud" in text or "\\uD" in text else value), end


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _integer(text: str) -> int:
    value = int(text) if len(text) <= _LONGEST_INTEGER else 2**64
    if not -(2**63) <= value < 2**64:
        raise ValueError(f"the number {shown(text)} has more than 64 bits")
    return value


def _real(text: str) -> float:
    value = float(text) if len(text) <= _LONGEST_REAL else math.inf
    if math.isinf(value):
        raise ValueError(f"the number {shown(text)} is out of range")
    return value


_HALF_PAIR = re.compile("[\ud800-\udfff]")
_BLANKS = " \t\r\n"
_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_int=_integer, parse_float=_real)


def _with_valid_text(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF_PAIR.sub("\ufffd", value)  # only lone surrogates are left
    if isinstance(value, list):
        return [_with_valid_text(item) for item in value]
    if isinstance(value, dict):
        return {_with_valid_text(key): _with_valid_text(item) for key, item in value.items()}
    return value


def dumps(value: Any, *, sort_keys: bool = False) -> str:
    """Encode plain data (mappings, sequences, strings, numbers, booleans, None) as JSON.

    Raises TypeError for anything else, and ValueError for NaN and infinities.
    """
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Mapping):
        names = sorted(value) if sort_keys else list(value)
        members = (_text(str(name)) + ":" + dumps(value[name], sort_keys=sort_keys) for name in names)
        return "{" + ",".join(members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(dumps(item, sort_keys=sort_keys) for item in value) + "]"
    raise TypeError(f"a value of type {type(value).__name__} has no JSON form")


def _text(value: str) -> str:
    # A lone surrogate cannot be encoded as UTF-8; Go replaces invalid characters.
    clean = value.encode("utf-8", "replace").decode("utf-8") if not value.isascii() else value
    return json.dumps(clean, ensure_ascii=False).translate(_ESCAPES)


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} has no JSON form")
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    shortest = Decimal(repr(value))
    if 1e-6 <= abs(value) < 1e21:
        text = format(shortest, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, _, exponent = f"{shortest.normalize():e}".partition("e")
    return f"{mantissa}e{int(exponent):+d}" if int(exponent) > 0 else f"{mantissa}e{int(exponent)}"
