"""A family of models: those that mark thinking and calls in the same way."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from puna.chat.answers.answer import Answer, EnoughError, think
from puna.chat.answers.parts import Form, Part, Tags
from puna.chat.answers.reader import Steps, search
from puna.chat.answers.tools import Tool

#: What is longer is no tag, and would be compared with every end of an answer.
_LONGEST: Final = 256


def tags_around(texts: Iterable[str]) -> Tags:
    """The tags around calls written as JSON objects: empty where there are none.

    `texts` are those that the template writes for a message with calls, in their order. The opening tag is
    what comes before the first bracket, the closing tag what comes after the last.
    """
    written = [text for text in texts if text.strip()]
    opening = written[0].partition("{")[0].strip().rstrip("[").strip() if written else ""
    if not 0 < len(opening) <= _LONGEST or opening.isalnum():
        return Tags("", "")
    closing = written[-1].rpartition("}")[2].strip().lstrip("]").strip().split("\n")[0].strip()
    return Tags(opening, closing if len(closing) <= _LONGEST and closing != opening else "")


_SPACE: Final = re.compile(r"\s*")


class Syntax(ABC):
    """How calls are written. They begin with `opening`, if there is one, unless a subclass knows better."""

    opening: str

    @property
    def openings(self) -> tuple[str, ...]:
        """Texts that begin calls, wherever they stand."""
        return (self.opening,) if self.opening else ()

    @property
    def first(self) -> tuple[str, ...]:
        """Texts that begin calls if an answer begins with them."""
        return ()

    @property
    @abstractmethod
    def form(self) -> Form:
        """How the model was taught to write them."""

    @abstractmethod
    def read(self, answer: Answer, opening: str) -> Steps[None]:
        """Read what begins with `opening`, which is not taken yet. Raises `BrokenError`."""


@dataclass(frozen=True)
class AnswerFamily:
    """How one family's answers are read."""

    name: str
    calls: Syntax | None = None
    dropped: tuple[str, ...] = ()  # markup around what is said
    calls_end_thinking: bool = False

    @property
    def thinking(self) -> Tags | None:
        """What is around thinking, where the family says so and not the model's template."""
        return None

    @property
    def thinking_before_calls(self) -> Tags | None:
        """What is around thinking that calls come after; None: as always."""
        return None

    def read(self, answer: Answer, reading: Reading) -> Steps[None]:
        """Read a whole answer."""
        tags, calls = reading.thinking, self.calls
        if tags is not None:
            ends = calls.openings if calls and self.calls_end_thinking and answer.may_call else ()
            yield from think(answer, tags.opening, tags.closing, begun=reading.begun, ends=ends)
        reader = answer.reader
        if calls is not None and calls.first and answer.may_call:
            answer.say((yield from reader.run(_SPACE)))
            found = yield from reader.comes(*calls.first)
            if found:
                yield from answer.attempt(found, calls.read(answer, found))
        while True:
            openings = calls.openings if calls is not None and answer.may_call else ()
            found = yield from reader.until(search(*openings, *self.dropped), answer.say)
            if not found:
                return
            if found in self.dropped:
                reader.take(len(found))
                continue
            assert calls is not None
            yield from answer.attempt(found, calls.read(answer, found))


@dataclass(frozen=True)
class Reading:
    """How one request's answers are read."""

    family: AnswerFamily
    thinking: Tags | None = None  # None: thinking is not told from what is said
    prompt: str = ""  # what the answers follow
    tools: Mapping[str, Tool] = field(default_factory=dict)  # none: calls are text
    streams_calls: bool = False  # arguments come as they are written, not when the call is complete
    begins_thinking: bool = False  # without an opening tag
    choice: str = "auto"  # as `Chat.tool_choice`
    parallel: bool = True
    strict: bool = False  # calls are valid by construction also where there need be none

    @property
    def forces_calls(self) -> bool:
        """Whether answers must call tools, or if they do, with valid arguments."""
        return self.choice != "auto" or (self.strict and bool(self.tools))

    @property
    def begun(self) -> bool:
        """Whether thinking has begun with the prompt."""
        if self.thinking is None:
            return False
        prompt = self.prompt.rstrip()
        if prompt.endswith(self.thinking.closing):
            return False
        return self.begins_thinking or prompt.endswith(self.thinking.opening)


class AnswerParser:
    """Tells the parts of one answer, fed in pieces of any size, apart.

    The pieces' borders make no difference to what comes out altogether.
    """

    def __init__(self, reading: Reading) -> None:
        self._answer = Answer(reading.tools, streams_calls=reading.streams_calls, parallel=reading.parallel)
        self._steps = reading.family.read(self._answer, reading)
        self.enough = False  # the answer is over, whatever else comes
        self._ended = False
        self._advance()

    def feed(self, text: str) -> list[Part]:
        """What is now certain."""
        if text:
            self._answer.reader.add(text)
            self._advance()
        return self._answer.taken()

    def flush(self, *, complete: bool = False) -> list[Part]:
        """What was held back, once the answer has ended: `complete` if it was the model that ended it."""
        self._answer.reader.ended = True
        self._answer.reader.complete = complete
        self._advance()
        self._answer.end()
        return self._answer.taken()

    def _advance(self) -> None:
        if not self._ended:
            try:
                next(self._steps)
            except StopIteration:
                self._ended = True
            except EnoughError:
                self._ended = self.enough = True
