"""Calls written as a language writes them: `f(a="x", b=1)`, or `call:f{a:<|"|>x<|"|>,b:1}`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from puna.chat.answers.answer import Answer
from puna.chat.answers.families.json_calls import JsonCalls, skip_closing
from puna.chat.answers.families.json_calls import call as json_call
from puna.chat.answers.families.literals import GEMMA, PYTHON, copy_members
from puna.chat.answers.families.named_json import LONGEST_NAME
from puna.chat.answers.family import Syntax
from puna.chat.answers.parts import Form, ParameterForm
from puna.chat.answers.reader import BrokenError, Steps

_NAME: Final = re.compile(r"[A-Za-z_][\w.:/-]*", re.ASCII)


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
    """`f(a=1)`; with a `suffix` after the name. Raises `BrokenError`."""
    reader = answer.reader
    name = (yield from reader.before("(", most=LONGEST_NAME)).strip()
    if suffix and not name.endswith(suffix):
        raise BrokenError
    name = name.removesuffix(suffix)
    if not _NAME.fullmatch(name) or (known_only and name not in answer.tools):
        raise BrokenError
    yield from _arguments(answer, name, "=", ")")


def _arguments(answer: Answer, name: str, pair: str, closing: str) -> Steps[None]:
    """What is between the brackets of a call, as its arguments."""
    reader = answer.reader
    answer.begin_call(name)
    yield from reader.space()
    answer.argue("{")
    notation = PYTHON if pair == "=" else GEMMA
    yield from copy_members(reader, notation, answer.argue, pair, closing)
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
        name = (yield from reader.before("{", most=LONGEST_NAME)).strip()
        if not _NAME.fullmatch(name):
            raise BrokenError
        yield from _arguments(answer, name, ":", "}")
        yield from skip_closing(answer, self.closing)


@dataclass(frozen=True)
class LlamaCalls(Syntax):
    """Llama 3: an answer that is `{"name": "f", "parameters": {...}}`, perhaps more after `;`.

    After `<|python_tag|>` it may also be `f.call(a="x")`.
    """

    pythonic: bool = False  # Llama 4: `[f(a=1)]`, which is read anyway

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
