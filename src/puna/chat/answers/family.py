"""Families of models that mark thinking and calls in the same way, and the parser of their answers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from puna.chat.answers.answer import Answer, EnoughError, drop_closing, think, think_again
from puna.chat.answers.parts import Form, Part, Tags
from puna.chat.answers.reader import Steps, search
from puna.chat.answers.tools import Tool

#: Characters of a tag; a longer one would be compared with every end of an answer.
_MAX_TAG: Final = 256


def tags_around(texts: Iterable[str]) -> Tags:
    """Return the tags around calls written as JSON objects; both empty if there are none.

    `texts` are the texts that the template writes for a message with calls, in order. The opening tag comes
    before the first bracket, and the closing tag after the last.
    """
    written = [text for text in texts if text.strip()]
    opening = written[0].partition("{")[0].strip().rstrip("[").strip() if written else ""
    if not 0 < len(opening) <= _MAX_TAG or opening.isalnum():
        return Tags("", "")
    closing = written[-1].rpartition("}")[2].strip().lstrip("]").strip().split("\n")[0].strip()
    return Tags(opening, closing if len(closing) <= _MAX_TAG and closing != opening else "")


_SPACE: Final = re.compile(r"\s*")


class Syntax(ABC):
    """A way to write calls, which begin with `opening` if it is not empty, unless a subclass overrides it."""

    opening: str

    @property
    def openings(self) -> tuple[str, ...]:
        """Texts that begin calls anywhere in an answer."""
        return (self.opening,) if self.opening else ()

    @property
    def first(self) -> tuple[str, ...]:
        """Texts that begin calls only at the start of an answer."""
        return ()

    @property
    @abstractmethod
    def form(self) -> Form:
        """The form in which the model was trained to write calls."""

    @abstractmethod
    def read(self, answer: Answer, opening: str) -> Steps[None]:
        """Read calls from the untaken `opening` on. Raises `BrokenError`."""


@dataclass(frozen=True)
class AnswerFamily:
    """A way to read answers, shared by the models of one family."""

    name: str
    calls: Syntax | None = None
    dropped: tuple[str, ...] = ()  # markup around the answer's text
    calls_end_thinking: bool = False

    @property
    def thinking(self) -> Tags | None:
        """Tags around thinking; None where the model's template decides."""
        return None

    @property
    def thinking_before_calls(self) -> Tags | None:
        """Tags around thinking that precedes calls; None if they are the usual ones."""
        return None

    def closing(self, reading: Reading, *, again: bool = False) -> str:
        """Return the text that ends a thought, so that the answer begins; `again` if another one followed."""
        return reading.thinking.closing if reading.thinking is not None else ""

    def read(self, answer: Answer, reading: Reading) -> Steps[None]:
        """Read a whole answer.

        After the beginning, tags of thinking are markup where they begin a line, or where a closing one ends
        it. Others are words of the text, with the tags that close them, as is a tag that is never closed.
        """
        tags, calls = reading.thinking, self.calls
        if tags is not None:
            ends = calls.openings if calls and self.calls_end_thinking and answer.may_call else ()
            yield from think(answer, tags.opening, tags.closing, begun=reading.begun, ends=ends)
        reader = answer.reader
        if calls is not None and calls.first and answer.tools and answer.may_call:
            answer.say((yield from reader.run(_SPACE)))
            found = yield from reader.comes(*calls.first)
            if found:
                yield from answer.attempt(found, calls.read(answer, found))
        around = (tags.opening, tags.closing) if tags is not None else ()
        mentioned = 0  # opening tags in the text that no closing one followed
        while True:
            openings = calls.openings if calls is not None and answer.may_call else ()
            found = yield from reader.until(search(*openings, *self.dropped, *around), answer.say)
            if not found:
                return
            if found in self.dropped:
                reader.take(len(found))
            elif found in openings:
                assert calls is not None
                yield from answer.attempt(found, calls.read(answer, found))
            elif tags is not None and found == tags.closing and not mentioned:
                yield from drop_closing(answer, found, calls=openings, dropped=self.dropped)
            elif tags is not None and found == tags.opening and answer.begins_line and answer.may_reread:
                yield from answer.attempt(found, think_again(answer, found, tags.closing))
            else:
                mentioned += 1 if tags is not None and found == tags.opening else -1
                answer.say(reader.take(len(found)))


@dataclass(frozen=True)
class Reading:
    """Settings with which the answers of one request are read."""

    family: AnswerFamily
    thinking: Tags | None = None  # None: thinking is not separated from the text
    prompt: str = ""  # that the answers continue
    tools: Mapping[str, Tool] = field(default_factory=dict)  # without tools, calls are text
    streams_calls: bool = False  # arguments come as they are written, not when the call is complete
    begins_thinking: bool = False  # without an opening tag
    asked: bool = True  # to think; otherwise a format applies from the first token on
    unmarks_calls: bool = False  # without tools, calls are text without their markup
    choice: str = "auto"  # as `Chat.tool_choice`
    parallel: bool = True
    strict: bool = False  # optional calls are valid by construction, too

    @property
    def forces_calls(self) -> bool:
        """Whether a grammar decides on calls: they are required, or must be valid if made."""
        return self.choice != "auto" or (self.strict and bool(self.tools))

    @property
    def begun(self) -> bool:
        """Whether the prompt ends inside thinking."""
        if self.thinking is None:
            return False
        prompt = self.prompt.rstrip()
        if prompt.endswith(self.thinking.closing):
            return False
        return self.begins_thinking or prompt.endswith(self.thinking.opening)

    @property
    def allowed_thinking(self) -> Tags | None:
        """Tags of the thinking that may precede a format; None if the format begins at once."""
        return self.thinking if self.asked or self.begun else None


class AnswerParser:
    """Splits one answer, fed in pieces of any size, into its parts.

    The total output does not depend on how the text was cut into pieces.
    """

    def __init__(self, reading: Reading) -> None:
        self._answer = Answer(
            reading.tools,
            streams_calls=reading.streams_calls,
            parallel=reading.parallel,
            unmarks_calls=reading.unmarks_calls,
        )
        self._steps = reading.family.read(self._answer, reading)
        self.enough = False  # the answer is over, whatever text follows
        self._ended = False
        self._advance()

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends inside a thought."""
        return self._answer.thinking and not self._ended

    @property
    def undecided(self) -> str:
        """The end of the text that has not been read, because it may begin markup."""
        return self._answer.reader.unread

    def feed(self, text: str) -> list[Part]:
        """Add `text`, and return the parts that are now certain."""
        if text:
            self._answer.reader.add(text)
            self._advance()
        return self._answer.taken()

    def flush(self, *, complete: bool = False) -> list[Part]:
        """End the answer, and return the parts held back; `complete` if the model ended it itself."""
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
