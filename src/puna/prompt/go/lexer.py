"""From template text to tokens: literal text, and the pieces of `{{ actions }}`."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import NoReturn

from puna.errors import TemplateError

KEYWORDS = frozenset(
    {"if", "else", "end", "range", "with", "define", "template", "block", "break", "continue", "nil"}
)

#: Go's idea of white space, which stands between a trimming dash and what is inside the action.
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

#: Tokens that end where the next one must not begin with a letter, digit or quote.
_WORDS = frozenset({"field", "variable", "name", "number", "char"})
_AFTER_WORD = frozenset(" \t\r\n.,|:()=")


@dataclass(frozen=True, slots=True)
class Token:
    """A piece of the template. `at` is its offset in the text."""

    kind: str  # text, left, right, end of file (eof), or a group name of the pattern, or keyword, bool
    text: str
    at: int


class Source:
    """Template text that knows its lines, for error messages."""

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, message: str, at: int) -> TemplateError:
        """A TemplateError naming line and column, both counted from 1."""
        line = self.text.count("\n", 0, at) + 1
        column = at - (self.text.rfind("\n", 0, at) + 1) + 1
        return TemplateError(f"template error: line {line}, column {column}: {message}")

    def fail(self, message: str, at: int) -> NoReturn:
        raise self.error(message, at)


def tokens(source: Source) -> Iterator[Token]:
    """All tokens, comments left out and trimming done. Raises TemplateError."""
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


def _comment(source: Source, opening: int, inside: int) -> tuple[int, bool] | None:
    """Where text goes on after a comment, and whether it is trimmed; None if this is no comment."""
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


def _action(source: Source, opening: int, at: int) -> Generator[Token, None, tuple[int, bool]]:
    """The tokens up to `}}`; returns where text goes on, and whether it is trimmed."""
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


def _refuse(source: Source, opening: int, at: int) -> NoReturn:
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
