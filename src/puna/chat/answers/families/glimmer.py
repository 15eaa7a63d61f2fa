"""Glimmer: an answer is several messages, each with a recipient."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from puna.chat.answers.answer import Answer
from puna.chat.answers.families.parameters import ParameterCalls
from puna.chat.answers.family import AnswerFamily, Reading, Syntax
from puna.chat.answers.parts import Form, Tags
from puna.chat.answers.reader import BrokenError, Steps, search

_START: Final = "<|start|>"
_MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|eom|>", "<|eot|>")
_TO: Final = " to="
_USER: Final = f"{_TO}user{_MESSAGE}"

# A recipient with tags would swallow the text of other messages.
_HEADER: Final = re.compile(rf"(?:{re.escape(_START)})?\s*(?:assistant)?\s*(?:to=([^\s<>|]+))?\s*")

#: Characters of a header.
_MAX_HEADER: Final = 512

_CALLS: Final = ParameterCalls(
    section="<atem:function_calls>",
    section_end="</atem:function_calls>",
    opening='<atem:invoke name="',
    after_name='">',
    closing="</atem:invoke>",
    key='<atem:parameter name="',
    after_key='">',
    value_end="</atem:parameter>",
    breaks="",
    exact=True,
)


@dataclass(frozen=True)
class GlimmerCalls(Syntax):
    """A call in XML, in a message to a function or in any other."""

    @property
    def openings(self) -> tuple[str, ...]:
        return (_START, _CALLS.section)

    @property
    def form(self) -> Form:
        # The grammar cannot repeat the name in the header, so the message is addressed to the user.
        calls = _CALLS.form
        return Form(
            calls.before,
            calls.after,
            calls.closing,
            f"{_USER}{calls.begin}",
            f"{calls.end}",
            parameters=calls.parameters,
            said=_USER,
        )

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        if opening == _CALLS.section:
            yield from _CALLS.read(answer, opening)
        else:
            yield from _message(answer)


@dataclass(frozen=True)
class Glimmer(AnswerFamily):
    """Thinking is a message of the model to itself."""

    @property
    def thinking(self) -> Tags | None:
        # A format applies from the message to the user on.
        return Tags(f"{_START}assistant", _USER)

    @property
    def thinking_before_calls(self) -> Tags:
        return Tags(f"{_TO}self{_MESSAGE}", f"<|eom|>{_START}assistant")

    def closing(self, reading: Reading, *, again: bool = False) -> str:
        chooses = bool(reading.tools) and not again
        return f"{_ENDS[0]}{_START}assistant" + ("" if reading.forces_calls or chooses else _USER)

    def read(self, answer: Answer, reading: Reading) -> Steps[None]:
        reader, calls = answer.reader, GlimmerCalls()
        found = yield from reader.comes(_TO, _MESSAGE)
        if found:  # the prompt ended inside the header
            yield from answer.attempt(found, _message(answer))
        while True:
            openings = calls.openings if answer.may_call else (_START,)
            found = yield from reader.until(search(*openings, *_ENDS), answer.say)
            if not found:
                return
            if found in _ENDS:
                reader.take(len(found))
            else:
                yield from answer.attempt(found, calls.read(answer, found))


def _message(answer: Answer) -> Steps[None]:
    """Read a message's header and its thinking; its text or calls are read like text between messages."""
    reader = answer.reader
    header = _HEADER.fullmatch((yield from reader.before(_MESSAGE, most=_MAX_HEADER)))
    if header is None:
        raise BrokenError
    reader.unmark()
    if header[1] == "self":
        yield from answer.thought(_START, *_ENDS)
