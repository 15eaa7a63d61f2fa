"""Lexer of templates: literal text, and the tokens of `{{ actions }}`."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NoReturn

from puna.errors import TemplateError

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
    """Return the text of a `"quoted"` or `` `raw` `` literal. Raises ValueError."""
    if literal.startswith("`"):
        return literal[1:-1].replace("\r", "")
    if literal.startswith('"') and "\\'" in literal.replace("\\\\", ""):
        raise ValueError(f"unknown escape in {literal}: ' needs no backslash here")
    return _unescape(literal[1:-1]).decode("utf-8", "replace")


def read_char(literal: str) -> int:
    """Return the code point of a `'x'` literal. Raises ValueError."""
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
    """Return the value of a number literal: any base, underscores between digits. Raises ValueError."""
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


KEYWORDS = frozenset(
    {"if", "else", "end", "range", "with", "define", "template", "block", "break", "continue", "nil"}
)

#: Go's white space, which separates a trimming dash from the contents of the action.
_BLANK = " \t\r\n"
_BLANKS = re.compile(r"[ \t\r\n]*")
_TRIMS_LEFT = frozenset("-" + blank for blank in _BLANK)

_TOKEN = re.compile(
    r"""
    (?P<space>[ \t\r\n]+)
  | (?P<declare>:=)
  | (?P<assign>=)
  | (?P<pipe>\|)
  | (?P<comma>,)
  | (?P<open>\()
  | (?P<close>\))
  | (?P<string>"(?:[^"\\\n]++|\\.)*+")
  | (?P<raw>`[^`]*`)
  | (?P<char>'(?:[^'\\\n]|\\(?:[0-7]{3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.))')
  | (?P<number>[+-]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+
               |(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?))
  | (?P<field>\.[^\W\d]\w*)
  | (?P<variable>\$\w*)
  | (?P<name>[^\W\d]\w*)
  | (?P<dot>\.)
    """,
    re.VERBOSE,
)

#: Tokens that a letter, digit or quote must not directly follow.
_WORDS = frozenset({"field", "variable", "name", "number", "char"})
_AFTER_WORD = frozenset(" \t\r\n.,|:()=")


@dataclass(frozen=True, slots=True)
class Token:
    """A token at offset `at` of the template's text."""

    kind: str  # text, left, right, end of file (eof), or a group name of the pattern, or keyword, bool
    text: str
    at: int


class TemplateSource:
    """A template's text, which locates errors by line and column."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, message: str, at: int) -> TemplateError:
        """Return a TemplateError naming line and column, both counted from 1."""
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return TemplateError(f"template error: line {line}, column {column}: {message}")

    def fail(self, message: str, at: int) -> NoReturn:
        raise self.error(message, at)


def tokens(source: TemplateSource) -> Iterator[Token]:
    """Yield all tokens, without comments and trimmed white space. Raises TemplateError."""
    text, at, trim = source.text, 0, False
    while True:
        opening = text.find("{{", at)
        end = opening if opening >= 0 else len(text)
        start = _end_of_blanks(text, at) if trim else at
        literal = text[start:end]
        trims_left = text[end + 2 : end + 4] in _TRIMS_LEFT
        if trims_left:
            literal = literal.rstrip(_BLANK)
        if literal:
            yield Token("text", literal, start)
        if opening < 0:
            yield Token("eof", "", len(text))
            return
        inside = opening + (3 if trims_left else 2)
        comment = _comment(source, opening, inside)
        if comment is not None:
            at, trim = comment
            continue
        yield Token("left", "{{", opening)
        at, trim = yield from _action(source, opening, inside)


def _comment(source: TemplateSource, opening: int, inside: int) -> tuple[int, bool] | None:
    """Return where text resumes after a comment, and whether it is trimmed; None without a comment."""
    text = source.text
    begin = _end_of_blanks(text, inside) if inside > opening + 2 else inside
    if not text.startswith("/*", begin):
        return None
    close = text.find("*/", begin + 2)
    if close < 0:
        source.fail("unclosed comment", opening)
    close += 2
    if text.startswith("}}", close):
        return close + 2, False
    if text[close : close + 1] in _BLANK and text.startswith("-}}", close + 1):
        return close + 4, True
    return source.fail("comment ends before closing delimiter", close)


def _action(source: TemplateSource, opening: int, at: int) -> Generator[Token, None, tuple[int, bool]]:
    """Yield the tokens up to `}}`; return where text resumes, and whether it is trimmed."""
    text, depth = source.text, 0
    while True:
        trims = text[at : at + 1] in _BLANK and text.startswith("-}}", at + 1)
        if trims or text.startswith("}}", at):
            if depth:
                source.fail("unclosed left paren", at)
            yield Token("right", "}}", at)
            return (at + 4, True) if trims else (at + 2, False)
        match = _TOKEN.match(text, at)
        if match is None:
            _refuse(source, opening, at)
        kind, word = str(match.lastgroup), match[0]
        if kind == "space" and text.startswith("-}}", match.end()):
            # The last blank belongs to the trimming delimiter.
            if len(word) > 1:
                yield Token("space", word[:-1], at)
            at = match.end() - 1
            continue
        depth += {"open": 1, "close": -1}.get(kind, 0)
        if depth < 0:
            source.fail("unexpected right paren", at)
        if kind in _WORDS and not _ends_cleanly(text, match.end()):
            source.fail(f"bad character {text[match.end()]!r} after {word!r}", match.end())
        if kind == "name":
            kind = "bool" if word in ("true", "false") else "keyword" if word in KEYWORDS else "name"
        yield Token(kind, word, at)
        at = match.end()


def _end_of_blanks(text: str, at: int) -> int:
    match = _BLANKS.match(text, at)
    return match.end() if match else at


def _ends_cleanly(text: str, at: int) -> bool:
    return at >= len(text) or text[at] in _AFTER_WORD or text.startswith("}}", at)


def _refuse(source: TemplateSource, opening: int, at: int) -> NoReturn:
    if at >= len(source.text):
        source.fail("unclosed action", opening)
    here = source.text[at]
    if here == '"':
        source.fail("unterminated quoted string", at)
    if here == "`":
        source.fail("unterminated raw quoted string", at)
    if here == "'":
        source.fail("unterminated character constant", at)
    source.fail(f"unrecognized character in action: {here!r}", at)
