"""gpt-oss: an answer is several messages, each with a header that names its channel."""

from __future__ import annotations

import re
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

#: Characters of a header.
_MAX_HEADER: Final = 512


@dataclass(frozen=True)
class Header:
    """A message's channel and recipient."""

    channel: str = ""
    recipient: str = ""

    @classmethod
    def of(cls, text: str) -> Header:
        """Parse `assistant<|channel|>commentary to=functions.f <|constrain|>json`, its parts in any order."""
        _, _, after = text.partition(CHANNEL)
        channel = _CHANNEL_NAME.match(after)
        recipient = _RECIPIENT.search(text.replace("<|", " <|"))
        return cls(channel[1] if channel else "", recipient[1] if recipient else "")


@dataclass(frozen=True)
class HarmonyCalls(Syntax):
    """A message to a function; `Harmony` reads all kinds of messages itself."""

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
    """Thinking in the channel `analysis`, text in `final`, and calls as messages to a function."""

    calls: Syntax | None = field(default_factory=lambda: HarmonyCalls())

    @property
    def thinking(self) -> Tags | None:
        # A format applies from the last message on.
        return Tags(f"{START}assistant", f"{CHANNEL}final{MESSAGE}")

    @property
    def thinking_before_calls(self) -> Tags:
        return Tags(f"{CHANNEL}analysis{MESSAGE}", "<|end|>")

    def closing(self, reading: Reading, *, again: bool = False) -> str:
        if reading.forces_calls:
            return _ENDS[0]
        # With tools, the model chooses whether to call one.
        to_user = not reading.tools or again
        return f"{_ENDS[0]}{START}assistant" + (f"{CHANNEL}final{MESSAGE}" if to_user else "")

    def read(self, answer: Answer, reading: Reading) -> Steps[None]:
        reader = answer.reader
        begun = _open_message(reading.prompt)
        if begun is not None:
            yield from _body(answer, begun)
        elif (yield from reader.comes(_TO)):  # the prompt ended inside the header
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
    """Return the header of the message that the prompt ends inside, if any."""
    header, found, body = prompt[prompt.rfind(START) :].partition(MESSAGE)
    return Header.of(header) if found and header and not any(end in body for end in _ENDS) else None


def _message(answer: Answer) -> Steps[None]:
    reader = answer.reader
    header = Header.of((yield from reader.before(MESSAGE, most=_MAX_HEADER)))
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
    """Read a message's text or thinking."""
    if header.channel == "analysis":
        yield from answer.thought(START, CHANNEL, *_ENDS)
    else:
        yield from answer.reader.until(search(START, CHANNEL, *_ENDS), answer.say)


def _known(answer: Answer, recipient: str) -> str:
    """Return the called tool's name. Raises `BrokenError` where calls are not allowed."""
    if not answer.may_call:
        raise BrokenError
    name = recipient.removeprefix("functions.")
    if name in answer.tools:
        return name
    # Models replace characters such as dots by underscores.
    return next((tool for tool in answer.tools if _UNUSABLE.sub("_", tool) == name), name)
