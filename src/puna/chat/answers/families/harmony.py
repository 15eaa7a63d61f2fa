"""gpt-oss: an answer is several messages, each with a header that says which channel it is for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from puna.chat.answers.answer import Answer
from puna.chat.answers.families.json_calls import arguments_of, object_text
from puna.chat.answers.family import AnswerFamily, Reading, Syntax
from puna.chat.answers.parts import Form, Tags
from puna.chat.answers.reader import BrokenError, Steps, search

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>")

_RECIPIENT: Final = re.compile(r"\bto=(\S+)")
_CHANNEL_NAME: Final = re.compile(r"\s*(\w*)")
_TO: Final = " to="
_UNUSABLE: Final = re.compile(r"[\s.-]")

#: Characters of a header; what is longer is none.
_LONGEST_HEADER: Final = 512


@dataclass(frozen=True)
class Header:
    """What a message is for."""

    channel: str = ""
    recipient: str = ""

    @classmethod
    def of(cls, text: str) -> Header:
        """`assistant<|channel|>commentary to=functions.f <|constrain|>json`, its parts in any order."""
        _, _, after = text.partition(CHANNEL)
        channel = _CHANNEL_NAME.match(after)
        recipient = _RECIPIENT.search(text.replace("<|", " <|"))
        return cls(channel[1] if channel else "", recipient[1] if recipient else "")


@dataclass(frozen=True)
class HarmonyCalls(Syntax):
    """How a message to a function is written; `Harmony` reads all kinds of messages itself."""

    @property
    def openings(self) -> tuple[str, ...]:
        return (START, CHANNEL)

    @property
    def form(self) -> Form:
        return Form(
            f"{CHANNEL}commentary to=functions.",
            f" <|constrain|>json{MESSAGE}",
            lead=f"{START}assistant",
            most=1,
            said=f"{CHANNEL}final{MESSAGE}",
        )

    def read(self, answer: Answer, opening: str) -> Steps[None]:
        yield from _message(answer)


@dataclass(frozen=True)
class Harmony(AnswerFamily):
    """Thinking is in the channel `analysis`, what is said in `final`; calls are messages to a function."""

    calls: Syntax | None = field(default_factory=lambda: HarmonyCalls())

    @property
    def thinking(self) -> Tags | None:
        # What a format is kept to begins with the last message.
        return Tags(f"{START}assistant", f"{CHANNEL}final{MESSAGE}")

    @property
    def thinking_before_calls(self) -> Tags:
        return Tags(f"{CHANNEL}analysis{MESSAGE}", "<|end|>")

    def read(self, answer: Answer, reading: Reading) -> Steps[None]:
        reader = answer.reader
        begun = _open_message(reading.prompt)
        if begun is not None:
            yield from _body(answer, begun)
        elif (yield from reader.comes(_TO)):  # what the prompt ends in was the beginning of the header
            yield from answer.attempt(_TO, _message(answer))
        while True:
            found = yield from reader.until(search(START, CHANNEL, *_ENDS), answer.say)
            if not found:
                return
            if found in _ENDS:
                reader.take(len(found))
                continue
            yield from answer.attempt(found, HarmonyCalls().read(answer, found))


def _open_message(prompt: str) -> Header | None:
    """The header of a message that the prompt ends within."""
    header, found, body = prompt[prompt.rfind(START) :].partition(MESSAGE)
    return Header.of(header) if found and header and not any(end in body for end in _ENDS) else None


def _message(answer: Answer) -> Steps[None]:
    reader = answer.reader
    header = Header.of((yield from reader.before(MESSAGE, most=_LONGEST_HEADER)))
    if not header.recipient or header.recipient in ("assistant", "user", "all"):
        reader.unmark()
        yield from _body(answer, header)
        return
    name = _known(answer, header.recipient)
    yield from reader.space()
    if (yield from reader.peek()) == "{":
        yield from arguments_of(answer, name)
        answer.end_call()
        yield from reader.space()
        yield from reader.skip(*_ENDS)
        return
    text: list[str] = []
    found = yield from reader.until(search(START, CHANNEL, *_ENDS), text.append)
    if not found and not reader.complete:
        raise BrokenError
    arguments = object_text("".join(text))
    answer.begin_call(name)
    answer.argue(arguments)
    answer.end_call()


def _body(answer: Answer, header: Header) -> Steps[None]:
    """What a message says, or thinks."""
    out: Callable[[str], None] = answer.think if header.channel == "analysis" else answer.say
    yield from answer.reader.until(search(START, CHANNEL, *_ENDS), out)


def _known(answer: Answer, recipient: str) -> str:
    """The tool that is called. Raises `BrokenError` where there are none."""
    if not answer.may_call:
        raise BrokenError
    name = recipient.removeprefix("functions.")
    if name in answer.tools:
        return name
    # Models write such names with underscores instead.
    return next((tool for tool in answer.tools if _UNUSABLE.sub("_", tool) == name), name)
