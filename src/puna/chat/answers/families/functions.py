"""Calls in the syntax of a programming language: `f(a="x", b=1)`, or `call:f{a:<|"|>x<|"|>,b:1}`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from puna.chat.answers.answer import Answer
from puna.chat.answers.families.json_calls import JsonCalls, skip_closing
from puna.chat.answers.families.json_calls import call as json_call
from puna.chat.answers.families.named_json import MAX_NAME
from puna.chat.answers.family import Syntax
from puna.chat.answers.json_text import is_number
from puna.chat.answers.parts import Form, ParameterForm
from puna.chat.answers.reader import BrokenError, Reader, Steps, search

_NAME: Final = re.compile(r"[A-Za-z_][\w.:/-]*", re.ASCII)
_DEEPEST: Final = 100
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_NUMBER_CHARACTERS: Final = re.compile(r"[-+.eE0-9_]*")
_WORD: Final = re.compile(r"\w*")
_WORDS: Final = {
    **dict.fromkeys(("True", "true"), "true"),
    **dict.fromkeys(("False", "false"), "false"),
    **dict.fromkeys(("None", "null", "none"), "null"),
}
#: Characters that keys without quotes have only if the tool's parameters do.
_NOT_IN_KEYS: Final = "\n,{}[]()"
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_CODES: Final = {"x": 2, "u": 4, "U": 8}

Out = Callable[[str], object]


@dataclass(frozen=True)
class PythonicCalls(Syntax):
    """A list of calls `[f(a=1), g()]`, or calls line by line between tags."""

    opening: str = ""  # empty: an answer that begins with the list
    closing: str = ""
    listed: bool = True

    @property
    def first(self) -> tuple[str, ...]:
        return () if self.opening else ("[",)

    @property
    def form(self) -> Form:
        begin, end = (f"{self.opening}[", f"]{self.closing}") if self.listed else (self.opening, self.closing)
        between = ", " if self.listed else "\n"
        return Form("", "(", ")", begin, end, between, parameters=ParameterForm("", "=", between=", "))

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        if self.opening:
            reader.take(len(opening))
            yield from reader.space()
        if (yield from reader.skip("[")):
            while True:
                yield from reader.space()
                yield from pythonic_call(answer, known_only=not self.opening)
                yield from reader.space()
                if (yield from reader.expect(",", "]")) == "]":
                    reader.mark()
                    break
        else:
            while True:
                yield from pythonic_call(answer)
                yield from reader.space()
                yield from reader.skip(",", ";")
                yield from reader.space()
                if not (yield from reader.peek()) or (yield from reader.comes(self.closing)):
                    break
        if self.closing:
            yield from skip_closing(answer, self.closing)


def pythonic_call(answer: Answer, *, known_only: bool = False, suffix: str = "") -> Steps[None]:
    """Read `f(a=1)`, whose name ends in `suffix`. Raises `BrokenError`."""
    reader = answer.reader
    name = (yield from reader.before("(", most=MAX_NAME)).strip()
    if suffix and not name.endswith(suffix):
        raise BrokenError
    name = name.removesuffix(suffix)
    if known_only and name not in answer.tools:
        raise BrokenError
    yield from _arguments(answer, name, "=", ")")


def _arguments(answer: Answer, name: str, pair: str, closing: str) -> Steps[None]:
    """Read the arguments between the brackets of a call. Raises `BrokenError` for what cannot be a name."""
    reader = answer.reader
    if name not in answer.tools and not _NAME.fullmatch(name):
        raise BrokenError
    answer.begin_call(name)
    yield from reader.space()
    answer.argue("{")
    notation = PYTHON if pair == "=" else GEMMA
    unusual = [
        key for key in answer.tool(name).properties if any(mark in key for mark in pair + _NOT_IN_KEYS)
    ]
    yield from copy_members(reader, notation, answer.argue, pair, closing, unusual)
    answer.argue("}")
    answer.end_call()


@dataclass(frozen=True)
class GemmaCalls(Syntax):
    """`<|tool_call>call:f{k:<|"|>text<|"|>,n:1}<tool_call|>`."""

    opening: str
    closing: str
    quote: str

    @property
    def form(self) -> Form:
        parameters = ParameterForm("", ":", quotes=(self.quote, self.quote), between=",")
        return Form(f"{self.opening}call:", "{", f"}}{self.closing}", parameters=parameters)

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        reader.take(len(opening))
        yield from reader.space()
        yield from reader.expect("call:")
        name = (yield from reader.before("{", most=MAX_NAME)).strip()
        yield from _arguments(answer, name, ":", "}")
        yield from skip_closing(answer, self.closing)


@dataclass(frozen=True)
class LlamaCalls(Syntax):
    """Llama 3: the answer is `{"name": "f", "parameters": {...}}`, perhaps with more after `;`.

    After `<|python_tag|>` it may also be `f.call(a="x")`.
    """

    pythonic: bool = False  # Llama 4 was trained on `[f(a=1)]`; both read it

    @property
    def openings(self) -> tuple[str, ...]:
        return ("<|python_tag|>", "<|python_start|>")

    @property
    def first(self) -> tuple[str, ...]:
        return ("{", "[")

    @property
    def form(self) -> Form:
        return PythonicCalls().form if self.pythonic else JsonCalls("", arguments="parameters").form

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        if opening in self.openings:
            reader.take(len(opening))
            yield from reader.space()
        tagged = opening in self.openings
        while True:
            kind = yield from reader.peek()
            if kind == "{":
                yield from json_call(answer, known_only=not tagged)
            elif kind == "[":
                yield from PythonicCalls().read(answer, kind)
            elif tagged:
                yield from pythonic_call(answer, known_only=True, suffix=".call")
            else:
                raise BrokenError
            yield from skip_closing(answer, "<|python_end|>")
            if not (yield from reader.skip(";")) and (yield from reader.peek()) != "{":
                return
            yield from reader.space()


@dataclass(frozen=True)
class Notation:
    """A language's notation of values."""

    quotes: tuple[str, ...] = ('"', "'")
    escapes: tuple[str, ...] = ('"', "'")  # quotes within which a backslash escapes
    bare_keys: bool = False


PYTHON: Final = Notation()
GEMMA: Final = Notation(('<|"|>', "<escape>", '"'), ('"',), bare_keys=True)


def copy_value(reader: Reader, notation: Notation, out: Out, depth: int = 0) -> Steps[None]:
    """Read one value, and give it to `out` as JSON. Raises `BrokenError`."""
    if depth > _DEEPEST:
        raise BrokenError
    quote = yield from reader.comes(*notation.quotes, "{", "[", "(")
    if quote == "{":
        yield from _copy_object(reader, notation, out, depth)
    elif quote in ("[", "("):
        yield from _copy_list(reader, notation, out, depth)
    elif quote:
        yield from copy_text(reader, notation, out)
    elif (character := (yield from reader.peek())) and character in "-+.0123456789":
        out(_number((yield from reader.run(_NUMBER_CHARACTERS))))
    else:
        word = yield from reader.run(_WORD)
        if word not in _WORDS:
            raise BrokenError
        out(_WORDS[word])


def copy_text(reader: Reader, notation: Notation, out: Out) -> Steps[None]:
    """Read a string, and give it to `out` as JSON."""
    quote = yield from reader.expect(*notation.quotes)
    out('"')
    marks = search(quote, "\\") if quote in notation.escapes else search(quote)
    while True:
        found = yield from reader.until(marks, lambda text: out(_escaped(text)), must_come=True)
        reader.take(len(found))
        if found == quote:
            out('"')
            return
        if not found:
            raise BrokenError
        out(_escaped((yield from _escape(reader))))


def _escape(reader: Reader) -> Steps[str]:
    kind = yield from reader.peek()
    reader.take(1)
    if kind in _CODES:
        code = yield from _code(reader, _CODES[kind])
        if 0xD800 <= code < 0xE000:  # half a pair, as JSON writes it
            yield from reader.expect("\\u")
            low = yield from _code(reader, 4)
            if code >= 0xDC00 or not 0xDC00 <= low < 0xE000:
                raise BrokenError
            code = 0x10000 + (code - 0xD800 << 10) + (low - 0xDC00)
        return chr(code)
    if not kind:
        raise BrokenError
    if kind in _ESCAPES:
        return _ESCAPES[kind]
    return kind if kind in "\\'\"/" else "\\" + kind


def _code(reader: Reader, length: int) -> Steps[int]:
    """Read a code point of `length` hexadecimal digits. Raises `BrokenError`."""
    digits = ""
    while len(digits) < length and (yield from reader.peek()):
        digits += reader.take(1)
    if not _HEX.fullmatch(digits) or len(digits) < length or int(digits, 16) > 0x10FFFF:
        raise BrokenError
    return int(digits, 16)


def _copy_list(reader: Reader, notation: Notation, out: Out, depth: int) -> Steps[None]:
    closing = "]" if reader.take(1) == "[" else ")"
    out("[")
    yield from reader.space()
    first = True
    while not (yield from reader.skip(closing)):
        if not first:
            out(", ")
        yield from copy_value(reader, notation, out, depth + 1)
        yield from _separated(reader, closing)
        first = False
    out("]")


def _copy_object(reader: Reader, notation: Notation, out: Out, depth: int) -> Steps[None]:
    reader.take(1)
    out("{")
    yield from reader.space()
    yield from copy_members(reader, notation, out, ":", "}", depth=depth)
    out("}")


def copy_members(
    reader: Reader,
    notation: Notation,
    out: Out,
    pair: str,
    closing: str,
    unusual: Sequence[str] = (),
    *,
    depth: int = 0,
) -> Steps[None]:
    """Read the members of an object or a call, and `closing`; give them to `out` as JSON.

    `unusual` are keys that may have characters with which keys without quotes would otherwise end or break.
    """
    whole = [key + pair for key in unusual]
    first = True
    while not (yield from reader.skip(closing)):
        if not first:
            out(", ")
        if found := (yield from reader.comes(*whole)):
            out(_quoted(reader.take(len(found)).removesuffix(pair)))
        elif pair == "=" or (notation.bare_keys and not (yield from reader.comes(*notation.quotes))):
            key = (yield from reader.before(pair, most=256)).strip()
            if not key or any(mark in key for mark in _NOT_IN_KEYS):
                raise BrokenError
            out(_quoted(key))
        else:
            yield from copy_text(reader, notation, out)
            yield from reader.space()
            yield from reader.expect(pair)
        out(": ")
        yield from reader.space()
        yield from copy_value(reader, notation, out, depth + 1)
        yield from _separated(reader, closing)
        first = False


def _separated(reader: Reader, closing: str) -> Steps[None]:
    """Take the comma after a value, which is optional before `closing`."""
    yield from reader.space()
    if not (yield from reader.skip(",")) and not (yield from reader.comes(closing)):
        raise BrokenError
    yield from reader.space()


def _number(text: str) -> str:
    plain = text.removeprefix("+").replace("_", "")
    if plain.startswith(("-.", ".")):
        plain = plain.replace(".", "0.", 1)
    if plain.endswith("."):
        plain += "0"
    if not is_number(plain):
        raise BrokenError
    return plain


def _escaped(text: str) -> str:
    """Return `text` escaped for a JSON string."""
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)[1:-1]


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'
