"""Go's literals: quoted strings, characters and numbers."""

from __future__ import annotations

import re

_ESCAPE = re.compile(
    rb"\\(?:([abfnrtv\\'\"])|x([0-9a-fA-F]{2})|([0-7]{3})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|)"
)
_SIMPLE = {
    b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\\": b"\\", b"'": b"'", b'"': b'"',
}  # fmt: skip
_INTEGER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO][0-7]+|0[0-7]*|[1-9]\d*)", re.ASCII)
_FLOAT = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d+)?", re.ASCII)


def read_string(literal: str) -> str:
    """The text of a `"quoted"` or `` `raw` `` literal. Raises ValueError."""
    if literal.startswith("`"):
        return literal[1:-1].replace("\r", "")
    if literal.startswith('"') and "\\'" in literal.replace("\\\\", ""):
        raise ValueError(f"unknown escape in {literal}: ' needs no backslash here")
    return _unescape(literal[1:-1]).decode("utf-8", "replace")


def read_char(literal: str) -> int:
    """The code point of a `'x'` literal. Raises ValueError."""
    body = literal[1:-1]
    match = re.fullmatch(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{3}))", body)
    if match:
        return int(match[1], 16) if match[1] else int(match[2], 8)
    text = _unescape(body).decode("utf-8", "replace")
    if len(text) != 1 or body == '\\"':
        raise ValueError(f"malformed character constant: {literal}")
    return ord(text)


def _unescape(body: str) -> bytes:
    def replace(match: re.Match[bytes]) -> bytes:
        simple, hexadecimal, octal, short, long = match.groups()
        if simple:
            return _SIMPLE[simple]
        if hexadecimal or octal:
            value = int(hexadecimal, 16) if hexadecimal else int(octal, 8)
            if value > 255:
                raise ValueError(f"octal escape out of range in {body!r}")
            return bytes([value])
        if short or long:
            code = int(short or long, 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise ValueError(f"escape is no valid character in {body!r}")
            return chr(code).encode()
        raise ValueError(f"unknown escape in {body!r}")

    return _ESCAPE.sub(replace, body.encode("utf-8", "replace"))


def read_number(literal: str) -> int | float:
    """The value of a number literal: any base, underscores between digits. Raises ValueError."""
    if re.search(r"^[+-]?_|_$|__|_\.|\._", literal):
        raise ValueError(f"bad number syntax: {literal}")
    digits = literal.replace("_", "")
    if _INTEGER.fullmatch(digits):
        sign = -1 if digits.startswith("-") else 1
        body = digits.lstrip("+-")
        octal = len(body) > 1 and body[0] == "0" and body[1].isdigit()
        value = sign * (int(body, 8) if octal else int(body, 0))
        if not -(2**63) <= value < 2**64:
            raise ValueError(f"integer overflow: {literal}")
        return value
    if _FLOAT.fullmatch(digits):
        number = float(digits)
        if number in (float("inf"), float("-inf")):
            raise ValueError(f"number out of range: {literal}")
        return number
    raise ValueError(f"bad number syntax: {literal}")
