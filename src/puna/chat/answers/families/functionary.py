"""Functionary 3.2: whom a message is for stands on its first line, after `>>>`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.chat.answers.answer import Answer
from puna.chat.answers.families.json_calls import arguments_of
from puna.chat.answers.families.named_json import LONGEST_NAME
from puna.chat.answers.family import AnswerFamily, Syntax
from puna.chat.answers.parts import Form
from puna.chat.answers.reader import BrokenError, Steps

if TYPE_CHECKING:
    from puna.chat.answers.family import Reading

OPENING = ">>>"


@dataclass(frozen=True)
class FunctionaryCalls(Syntax):
    """`>>>f` and a line break, then JSON; `>>>all` begins text."""

    @property
    def openings(self) -> tuple[str, ...]:
        return (OPENING,)

    @property
    def form(self) -> Form:
        # The first `>>>` is the end of the prompt.
        return Form("", "\n", between=f"\n{OPENING}", said="all\n")

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        answer.reader.take(len(opening))
        yield from _message(answer)


@dataclass(frozen=True)
class Functionary(AnswerFamily):
    """A prompt ends in the `>>>` of the answer's first message."""

    def read(self, answer: Answer, reading: Reading) -> Steps[None]:
        if reading.prompt.endswith(OPENING):
            yield from answer.attempt("", _message(answer))
        yield from super().read(answer, reading)


def _message(answer: Answer) -> Steps[None]:
    """Everybody, or a function with its arguments. Raises `BrokenError`."""
    reader = answer.reader
    name = yield from reader.before("\n", most=LONGEST_NAME)
    if name == "all":
        return
    if not answer.tools or (yield from reader.peek()) != "{":
        raise BrokenError
    yield from arguments_of(answer, name)
    answer.end_call()
    yield from reader.space()
