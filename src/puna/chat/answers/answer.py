"""One answer while it streams in: its thinking, its text and its tool calls."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Mapping
from typing import Final

from puna.chat.answers.parts import CallDelta, Part, Said, Thought
from puna.chat.answers.reader import BrokenError, Reader, Steps, search
from puna.chat.answers.tools import Tool

#: How many times the length of an answer may be reread after failed calls before the search for calls stops.
_MAX_REREAD: Final = 4

_ID_CHARACTERS: Final = string.ascii_lowercase + string.digits

#: A plausible name for a tool that the request does not define.
_NAME: Final = re.compile(r"[\w.:/@-]{1,256}")

_random = random.SystemRandom()


class EnoughError(Exception):
    """The end of the answer, whatever text follows. Never leaves this package."""


class Answer:
    """The certain parts of one answer, and the operations with which a family's parser adds to them."""

    def __init__(
        self, tools: Mapping[str, Tool], *, streams_calls: bool, parallel: bool, unmarks_calls: bool = False
    ) -> None:
        self.reader = Reader()
        self.tools = tools
        self.thinking = False  # inside a thought
        self._unmarks = unmarks_calls and not tools
        self._streams = streams_calls and bool(tools)
        self._parallel = parallel or not tools
        self._line = ""  # the first character, after white space, of the line at the end of the text
        self._parts: list[Part] = []
        self._space = ""  # held back, as it may belong to the markup of a call
        self._bare = True  # no text since the beginning, or since the last call
        self._after_call = False
        self._calls = 0
        self._ids: set[str] = set()
        self._name: str | None = None  # of the call being read
        self._arguments: list[str] = []
        self._announced = False

    def taken(self) -> list[Part]:
        """Return the parts that have become certain since the last call."""
        parts, self._parts = self._parts, []
        return parts

    def think(self, text: str) -> None:
        self._add(Thought(text))

    def say(self, text: str) -> None:
        """Add `text` to the answer, holding back trailing white space that may belong to a following call."""
        self._line = (self._line + text).rpartition("\n")[2].lstrip()[:1]
        if not self.tools and not self._unmarks:
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

    @property
    def begins_line(self) -> bool:
        """Whether the text so far ends at the beginning of a line, or of the answer, or with a call."""
        return not self._line

    def thought(self, *ends: str) -> Steps[str]:
        """Read thinking up to the first of `ends`, and return that one without taking it."""
        self.thinking = True
        found = yield from self.reader.until(search(*ends), self.think)
        self.thinking = False
        return found

    def end(self) -> None:
        """Release held-back white space at the end of the answer."""
        if self._space and not self._after_call:
            self._add(Said(self._space))
        self._space = ""

    def tool(self, name: str) -> Tool:
        """Return the tool called `name`; an unknown one has no parameters."""
        return self.tools.get(name) or Tool(name)

    def begin_call(self, name: str) -> None:
        """Begin a call. Raises `BrokenError` if `name` is not a plausible name."""
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
        """Add to the JSON text of the arguments."""
        if not self._announced:
            self._arguments.append(text)
        elif text:
            self._parts.append(CallDelta(self._calls, arguments=text))
            self.reader.mark()

    def end_call(self) -> None:
        """Complete the call. Raises `EnoughError` if the answer may have only one."""
        assert self._name is not None
        arguments = "".join(self._arguments)
        if self._unmarks:
            self.say("\n" * bool(self._line) + self._name + arguments)
        else:
            self._line = ""
        if not self._unmarks and not self._announced:
            self._space, self._bare, self._after_call = "", True, True
            self._parts.append(CallDelta(self._calls, self._new_id(), self._name, arguments))
        self._name, self._announced = None, False
        self._calls += 1
        self.reader.mark()
        if not self._parallel:
            raise EnoughError

    def _drop_call(self) -> None:
        """Abandon the call; deltas already sent stay sent."""
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

    def attempt(self, opening: str, markup: Steps[None]) -> Steps[bool]:
        """Read `markup`, which begins with the untaken `opening`; return False if it turns out malformed.

        In that case everything that was not sent, at least the opening, is read again as text.
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
        """Whether to keep looking for calls."""
        return (bool(self.tools) or self._unmarks) and self.may_reread

    @property
    def may_reread(self) -> bool:
        """Whether to keep looking for markup that may turn out broken."""
        return self.reader.reread <= _MAX_REREAD * self.reader.added


_SPACE: Final = re.compile(r"\s*")
_BLANK: Final = re.compile(r"[ \t]*")


def think(
    answer: Answer, opening: str, closing: str, *, begun: bool, ends: tuple[str, ...] = ()
) -> Steps[None]:
    """Read thinking between two tags at the very start of an answer, or already `begun` in the prompt.

    White space after either tag is dropped. Any of `ends` also ends the thinking, and is left unread.
    """
    reader = answer.reader
    blank = ""
    if begun:
        answer.thinking = True
        yield from reader.run(_SPACE)
        yield from reader.skip(opening)
    else:
        blank = yield from reader.run(_SPACE)
        if not (yield from reader.skip(opening)):
            answer.say(blank)
            return
        answer.thinking = True
    yield from reader.run(_SPACE)
    found = yield from answer.thought(closing, *ends)
    if found == closing:
        reader.take(len(closing))
        yield from reader.run(_SPACE)


def think_again(answer: Answer, opening: str, closing: str) -> Steps[None]:
    """Read a further thought, whose untaken opening tag begins a line.

    Nothing of it is certain before the closing tag. Raises `BrokenError` without one.
    """
    reader = answer.reader
    reader.take(len(opening))
    answer.thinking = True
    text: list[str] = []
    try:
        yield from reader.run(_SPACE)
        found = yield from reader.until(search(closing), text.append)
    finally:
        answer.thinking = False
    if not found:
        raise BrokenError
    reader.take(len(closing))
    answer.think("".join(text))
    yield from reader.run(_SPACE)


def drop_closing(
    answer: Answer, closing: str, *, calls: tuple[str, ...] = (), dropped: tuple[str, ...] = ()
) -> Steps[None]:
    """Drop an untaken closing tag that closes nothing and begins or ends a line; within one it is text.

    A line also ends where one of `calls` begins. More closing tags and texts to be `dropped` may follow.
    """
    reader = answer.reader
    reader.take(len(closing))
    if answer.begins_line:
        yield from reader.run(_SPACE)
        return
    text, blank = closing, ""
    while True:
        blank += yield from reader.run(_BLANK)
        if (yield from reader.skip(closing)):
            text, blank = text + blank + closing, ""
        elif not dropped or not (yield from reader.skip(*dropped)):
            break
    if (yield from reader.peek()) in ("", "\n", "\r") or (calls and (yield from reader.comes(*calls))):
        answer.say(blank)
    else:
        answer.say(text + blank)
