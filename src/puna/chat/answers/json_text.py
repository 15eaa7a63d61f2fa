"""Streaming JSON: each character is passed on as soon as it is certain, exactly as it was written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from puna.chat.answers.reader import BrokenError, Reader, Steps

Out = Callable[[str], object]

#: Nesting of values. Deeper JSON is refused everywhere else, too.
_MAX_DEPTH: Final = 100

_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_NUMBER_CHARACTERS: Final = re.compile(r"[-+.eE0-9]*")
_WORD_CHARACTERS: Final = re.compile(r"[a-z]*")
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_HEX: Final = re.compile(r"[0-9a-fA-F]{4}")


def copy_json(reader: Reader, out: Out) -> Steps[None]:
    """Read one JSON value, and give its text to `out`. Raises `BrokenError` if it is malformed."""
    closing: list[str] = []  # brackets that are open
    while True:
        yield from _copy_space(reader, out)
        kind = yield from reader.peek()
        if kind in ("{", "["):
            out(reader.take(1))
            closing.append("}" if kind == "{" else "]")
            if len(closing) > _MAX_DEPTH:
                raise BrokenError
            yield from _copy_space(reader, out)
            if (yield from reader.peek()) != closing[-1]:
                if kind == "{":
                    yield from _copy_key(reader, out)
                continue
        elif kind == '"':
            yield from copy_string(reader, out)
        elif kind and kind in "-0123456789":
            yield from _copy_number(reader, out)
        else:
            word = yield from reader.run(_WORD_CHARACTERS)
            if word not in ("true", "false", "null"):
                raise BrokenError
            out(word)
        # A value has ended, or empty brackets are about to.
        while closing:
            yield from _copy_space(reader, out)
            mark = yield from reader.peek()
            if mark == closing[-1]:
                out(reader.take(1))
                closing.pop()
                continue
            if mark != ",":
                raise BrokenError
            out(reader.take(1))
            if closing[-1] == "}":
                yield from _copy_key(reader, out)
            break
        else:
            return


def read_string(reader: Reader) -> Steps[str]:
    """Read a JSON string, and return its value. Raises `BrokenError`."""
    parts: list[str] = []
    yield from copy_string(reader, parts.append)
    value = json.loads("".join(parts))
    assert isinstance(value, str)
    return value


def copy_string(reader: Reader, out: Out) -> Steps[None]:
    """Read a string, and give it to `out` in quotes.

    Raw line breaks and other control characters, which models write although JSON forbids them, are escaped;
    half a surrogate pair becomes U+FFFD.
    """
    out((yield from reader.expect('"')))
    while True:
        text = yield from _plain(reader)
        if text:
            out(text)
        mark = yield from reader.peek()
        if mark == '"':
            out(reader.take(1))
            return
        if mark == "\\":
            out((yield from _escape(reader)))
        elif mark:
            out(json.dumps(reader.take(1), ensure_ascii=False)[1:-1])
        else:
            raise BrokenError


def _plain(reader: Reader) -> Steps[str]:
    """Take the available text up to the next mark: at least one character, unless a mark comes next."""
    yield from reader.peek()
    return reader.take_match(_PLAIN)


def _escape(reader: Reader) -> Steps[str]:
    reader.take(1)
    kind = yield from reader.peek()
    reader.take(1)
    if kind and kind in '"\\/bfnrt':
        return "\\" + kind
    if kind != "u":
        raise BrokenError
    high = yield from _hex(reader)
    if not _is_surrogate(high):
        return "\\u" + high
    if int(high, 16) >= 0xDC00 or not (yield from reader.skip("\\u")):
        if reader.is_left("", "\\"):  # the answer ended before the other half
            raise BrokenError
        return "\\ufffd"
    low = yield from _hex(reader)
    if not _is_surrogate(low):
        return f"\\ufffd\\u{low}"
    return f"\\u{high}\\u{low}" if int(low, 16) >= 0xDC00 else "\\ufffd\\ufffd"


def _hex(reader: Reader) -> Steps[str]:
    """Read four hexadecimal digits. Raises `BrokenError`."""
    digits = ""
    while len(digits) < 4 and (yield from reader.peek()):
        digits += reader.take(1)
    if not _HEX.fullmatch(digits):
        raise BrokenError
    return digits


def _is_surrogate(digits: str) -> bool:
    return 0xD800 <= int(digits, 16) < 0xE000


def _copy_number(reader: Reader, out: Out) -> Steps[None]:
    text = yield from reader.run(_NUMBER_CHARACTERS)
    if not _NUMBER.fullmatch(text):
        raise BrokenError
    out(text)


def _copy_key(reader: Reader, out: Out) -> Steps[None]:
    yield from _copy_space(reader, out)
    yield from copy_string(reader, out)
    yield from _copy_space(reader, out)
    out((yield from reader.expect(":")))


def _copy_space(reader: Reader, out: Out) -> Steps[None]:
    text = yield from reader.run(_SPACE)
    if text:
        out(text)


def is_number(text: str) -> bool:
    """Return whether `text` is a JSON number."""
    return _NUMBER.fullmatch(text) is not None


def parsed(text: str) -> Any:
    """Return the value of a JSON text. Raises ValueError, also for NaN and infinities."""

    def refuse(name: str) -> Any:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError(str(error)) from None
