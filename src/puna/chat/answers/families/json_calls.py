"""Calls that are JSON objects with a name and arguments, one or a list of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from puna.chat.answers.answer import Answer
from puna.chat.answers.family import Syntax
from puna.chat.answers.json_text import copy_json, parsed, read_string
from puna.chat.answers.parts import Form
from puna.chat.answers.reader import BrokenError, Steps

#: Member names that models use, whatever their templates say.
_NAMES: Final = ("name", "tool_name", "function_name")
_ARGUMENTS: Final = ("arguments", "parameters", "args")


@dataclass(frozen=True)
class JsonCalls(Syntax):
    """`<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, or a list of such objects there."""

    opening: str
    closing: str = ""  # may be missing in an answer
    listed: bool = False  # in the model's training; both are read
    name: str = "name"
    arguments: str = "arguments"
    between: str = "; "  # calls without tags; line breaks are read, too
    others: tuple[str, ...] = ()  # further openings that are read

    @property
    def openings(self) -> tuple[str, ...]:
        return (*super().openings, *self.others)

    @property
    def first(self) -> tuple[str, ...]:
        return () if self.opening else ("{", "[")

    @property
    def form(self) -> Form:
        before, after = f'{{"{self.name}": "', f'", "{self.arguments}": '
        if self.listed:
            return Form(before, after, "}", f"{self.opening}[", f"]{self.closing}", ", ")
        breaks = "\n" if self.closing else ""
        return Form(
            f"{self.opening}{breaks}{before}",
            after,
            f"}}{breaks}{self.closing}",
            between=breaks or self.between,
        )

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        if self.opening:
            reader.take(len(opening))
            yield from reader.space()
        yield from calls(answer, known_only=not self.opening)
        if self.closing:
            yield from skip_closing(answer, self.closing)
        while not self.opening:
            yield from reader.space()
            if not (yield from reader.skip(";")) and (yield from reader.peek()) != "{":
                return
            yield from reader.space()
            yield from call(answer, known_only=True)


def calls(answer: Answer, *, known_only: bool = False) -> Steps[None]:
    """Read an object, or a list of at least one."""
    reader = answer.reader
    if not (yield from reader.skip("[")):
        yield from call(answer, known_only=known_only)
        return
    while True:
        yield from reader.space()
        yield from call(answer, known_only=known_only)
        yield from reader.space()
        if (yield from reader.expect(",", "]")) == "]":
            reader.mark()
            return


def skip_closing(answer: Answer, *closing: str) -> Steps[None]:
    """Take white space after a call, and a closing tag if it comes."""
    yield from answer.reader.space()
    yield from answer.reader.skip(*closing)


def call(answer: Answer, *, known_only: bool = False) -> Steps[None]:
    """Read one object. Raises `BrokenError`, with `known_only` also for an unknown tool."""
    reader = answer.reader
    found = _Call(answer, known_only)
    yield from reader.expect("{")
    yield from _members(found)
    found.end()


class _Call:
    """The call described by the members of an object read so far."""

    def __init__(self, answer: Answer, known_only: bool) -> None:
        self.answer = answer
        self._known_only = known_only
        self._name: str | None = None
        self._arguments: str | None = None  # if they came before the name
        self._begun = False

    def named(self, name: str) -> None:
        if self._name is not None or (self._known_only and name not in self.answer.tools):
            raise BrokenError
        self._name = name

    def argued(self) -> Steps[None]:
        """Read the arguments: an object, nothing, or either as JSON text in a string."""
        if self._begun or self._arguments is not None:
            raise BrokenError
        reader = self.answer.reader
        kind = yield from reader.peek()
        if kind == "{" and self._name is not None:
            self._begin()
            yield from copy_json(reader, self.answer.argue)
            return
        parts: list[str] = []
        yield from copy_json(reader, parts.append)
        text = "".join(parts)
        if kind == '"':
            text = json.loads(text)
        self._arguments = object_text(text)

    def end(self) -> None:
        if self._name is None or (self._known_only and not self._begun and self._arguments is None):
            raise BrokenError
        if not self._begun:
            self._begin()
            self.answer.argue(self._arguments or "{}")
        self.answer.end_call()

    def _begin(self) -> None:
        assert self._name is not None
        self.answer.begin_call(self._name)
        self._begun = True


def object_text(text: str) -> str:
    """Return the JSON of complete arguments; `{}` for none. Raises `BrokenError` unless it is an object."""
    try:
        value = parsed(text) if text.strip() else None
    except ValueError:
        raise BrokenError from None
    if value is None:
        return "{}"
    if not isinstance(value, dict):
        raise BrokenError
    return text.strip()


def _members(found: _Call, *, nested: bool = False) -> Steps[None]:
    reader = found.answer.reader
    yield from reader.space()
    if (yield from reader.skip("}")):
        return
    while True:
        yield from reader.space()
        key = yield from read_string(reader)
        yield from reader.space()
        yield from reader.expect(":")
        yield from reader.space()
        kind = yield from reader.peek()
        if key in _NAMES and kind == '"':
            found.named((yield from read_string(reader)))
        elif key in _ARGUMENTS:
            yield from found.argued()
        elif key == "function" and kind == "{" and not nested:
            reader.take(1)
            yield from _members(found, nested=True)
        elif key == "function" and kind == '"':
            found.named((yield from read_string(reader)))
        else:  # an id, or a type
            yield from copy_json(reader, len)
        yield from reader.space()
        if (yield from reader.expect(",", "}")) == "}":
            return


_FENCE: Final = "```"


@dataclass(frozen=True)
class FencedCalls(Syntax):
    """`Action:` and, between fences, `[{"tool_name": "f", "parameters": {...}}]`."""

    opening: str
    name: str = "tool_name"
    arguments: str = "parameters"

    @property
    def form(self) -> Form:
        before, after = f'{{"{self.name}": "', f'", "{self.arguments}": '
        return Form(before, after, "}", f"{self.opening} {_FENCE}json\n[", f"]\n{_FENCE}", ", ")

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        reader.take(len(opening))
        yield from reader.space()
        if (yield from reader.skip(f"{_FENCE}json", _FENCE)):
            yield from reader.space()
        yield from calls(answer)
        yield from skip_closing(answer, _FENCE)


@dataclass(frozen=True)
class KeyedCalls(Syntax):
    """`<|tools_prefix|>[{"f": {...}}]<|tools_suffix|>`: the only key of an object is the name."""

    opening: str
    closing: str

    @property
    def form(self) -> Form:
        return Form('{"', '": ', "}", f"{self.opening}[", f"]{self.closing}", ", ")

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        reader = answer.reader
        reader.take(len(opening))
        yield from reader.space()
        yield from reader.expect("[")
        while True:
            yield from reader.space()
            yield from reader.expect("{")
            yield from reader.space()
            name = yield from read_string(reader)
            yield from reader.space()
            yield from reader.expect(":")
            yield from reader.space()
            yield from arguments_of(answer, name)
            yield from reader.space()
            yield from reader.expect("}")
            answer.end_call()
            yield from reader.space()
            if (yield from reader.expect(",", "]")) == "]":
                reader.mark()
                break
        yield from skip_closing(answer, self.closing)


def arguments_of(answer: Answer, name: str) -> Steps[None]:
    """Begin the call of `name` with the object that comes next as its arguments. Raises `BrokenError`."""
    if (yield from answer.reader.peek()) != "{":
        raise BrokenError
    answer.begin_call(name)
    yield from copy_json(answer.reader, answer.argue)
