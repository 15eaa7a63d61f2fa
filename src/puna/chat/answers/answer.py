"""One answer while it streams in: what is thought, what is said, which tools are called."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Mapping
from typing import Final

from puna.chat.answers.parts import CallDelta, Part, Said, Thought
from puna.chat.answers.reader import BrokenError, Reader, Steps, search
from puna.chat.answers.tools import Tool

#: How often all of an answer may be read again because it was no call; then none is looked for any more.
_MAX_REREAD: Final = 4

_ID_CHARACTERS: Final = string.ascii_lowercase + string.digits

#: What a tool may be called that nobody knows.
_NAME: Final = re.compile(r"[\w.:/@-]{1,256}")

_random = random.SystemRandom()


class EnoughError(Exception):
    """The answer is over, whatever else comes. Never leaves this package."""


class Answer:
    """What has become certain of one answer, and how a family's parser adds to it."""

    def __init__(self, tools: Mapping[str, Tool], *, streams_calls: bool, parallel: bool) -> None:
        self.reader = Reader()
        self.tools = tools
        self._streams = streams_calls
        self._parallel = parallel
        self._parts: list[Part] = []
        self._space = ""  # that may belong to the markup of a call
        self._bare = True  # nothing was said since the beginning, or since the last call
        self._after_call = False
        self._calls = 0
        self._ids: set[str] = set()
        self._name: str | None = None  # of the call that is being read
        self._arguments: list[str] = []
        self._announced = False

    def taken(self) -> list[Part]:
        """What has become certain since the last time."""
        parts, self._parts = self._parts, []
        return parts

    def think(self, text: str) -> None:
        self._add(Thought(text))

    def say(self, text: str) -> None:
        """Say `text`. White space at its end may turn out to belong to a call that follows."""
        if not self.tools:
            self._add(Said(text))
            return
        text = self._space + text
        self._space = ""
        if self._after_call:
            text = text.lstrip()
        kept = text.rstrip()
        if not kept and self._bare:
            self._space = text
            return
        line = text.find("\n", len(kept))
        if line >= 0:
            text, self._space = text[:line], text[line:]
        if text:
            self._bare = self._after_call = False
            self._add(Said(text))

    def end(self) -> None:
        """Nothing comes any more."""
        if self._space and not self._after_call:
            self._add(Said(self._space))
        self._space = ""

    # --- calls --------------------------------------------------------------------------------------

    def tool(self, name: str) -> Tool:
        """The tool a model calls `name`; one that nobody knows has no parameters."""
        return self.tools.get(name) or Tool(name)

    def begin_call(self, name: str) -> None:
        """A call has begun. Raises `BrokenError` for what is no name."""
        if name not in self.tools and not _NAME.fullmatch(name):
            raise BrokenError
        self._name = name
        self._arguments = []
        if self._streams:
            self._announced = True
            self._space, self._bare, self._after_call = "", True, True
            self._parts.append(CallDelta(self._calls, self._new_id(), name))
            self.reader.mark()

    def argue(self, text: str) -> None:
        """More of the JSON text of the arguments."""
        if not self._announced:
            self._arguments.append(text)
        elif text:
            self._parts.append(CallDelta(self._calls, arguments=text))
            self.reader.mark()

    def end_call(self) -> None:
        """The call is complete. Raises `EnoughError` if it is to be the only one."""
        assert self._name is not None
        if not self._announced:
            self._space, self._bare, self._after_call = "", True, True
            arguments = "".join(self._arguments)
            self._parts.append(CallDelta(self._calls, self._new_id(), self._name, arguments))
        self._name, self._announced = None, False
        self._calls += 1
        self.reader.mark()
        if not self._parallel:
            raise EnoughError

    def _drop_call(self) -> None:
        """The call is none after all. What was sent of it stays."""
        if self._announced:
            self._calls += 1
        self._name, self._announced = None, False

    def _new_id(self) -> str:
        while (id := "call_" + "".join(_random.choices(_ID_CHARACTERS, k=8))) in self._ids:
            pass
        self._ids.add(id)
        return id

    def _add(self, part: Thought | Said) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(last, type(part)) and not isinstance(last, CallDelta):
            self._parts[-1] = type(part)(last.text + part.text)
        elif part.text:
            self._parts.append(part)

    # --- markup -------------------------------------------------------------------------------------

    def attempt(self, opening: str, markup: Steps[None]) -> Steps[bool]:
        """Read `markup`, which begins with `opening`, not yet taken. False if it is none.

        Then all that was not sent is to be read as text, at least the opening.
        """
        sent = self._calls
        self.reader.mark()
        try:
            yield from markup
        except BrokenError:
            streamed = self._announced or self._calls > sent
            self._drop_call()
            self.reader.rewind()
            if not streamed:
                self.say(self.reader.take(len(opening)))
            return False
        self.reader.unmark()
        return True

    @property
    def may_call(self) -> bool:
        """Whether to look for calls any more."""
        return bool(self.tools) and self.reader.reread <= _MAX_REREAD * self.reader.added


_SPACE: Final = re.compile(r"\s*")


def think(
    answer: Answer, opening: str, closing: str, *, begun: bool, ends: tuple[str, ...] = ()
) -> Steps[None]:
    """Read what is between two tags at the very beginning of an answer; it may have `begun` before that.

    White space after either tag is dropped. One of `ends` also ends it, and is not taken.
    """
    reader = answer.reader
    blank = ""
    if begun:
        yield from reader.run(_SPACE)
        yield from reader.skip(opening)
    else:
        blank = yield from reader.run(_SPACE)
        if not (yield from reader.skip(opening)):
            answer.say(blank)
            return
    yield from reader.run(_SPACE)
    found = yield from reader.until(search(closing, *ends), answer.think)
    if found == closing:
        reader.take(len(closing))
        yield from reader.run(_SPACE)
