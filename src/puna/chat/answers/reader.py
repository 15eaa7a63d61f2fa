"""Text that comes in pieces of any size, for parsers that are written as if all of it were there.

A parser is a generator: it yields when it needs more text, and goes on when that has come. What it finds
cannot depend on where the text was cut, because it looks at nothing but text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Final, TypeVar

_T = TypeVar("_T")

#: A part of a parser: yields to wait for text, returns what it has found.
Steps = Generator[None, None, _T]

_SPACE: Final = re.compile(r"[ \t\r\n]*")


class BrokenError(Exception):
    """What was read is no markup after all. Never leaves this package."""


class Search:
    """Finds the first of some texts, none of which begins another."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        self._longest = max(map(len, texts), default=0)
        self._any = re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")
        self._begun = _beginnings(self.texts)

    def find(self, text: str, begin: int) -> tuple[int, str] | None:
        """Where the first begins in `text` from `begin` on, and which it is."""
        match = self._any.search(text, begin)
        return (match.start(), match[0]) if match else None

    def undecided(self, text: str, begin: int) -> int:
        """How many characters at the end of `text[begin:]` may be the beginning of one."""
        for size in range(min(self._longest - 1, len(text) - begin), 0, -1):
            if text[len(text) - size :] in self._begun:
                return size
        return 0


@lru_cache(maxsize=256)
def _beginnings(texts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(text[:size] for text in texts for size in range(1, len(text)))


class Reader:
    """The text of one answer: what has come and is not read yet."""

    def __init__(self) -> None:
        self.ended = False
        self.complete = False  # the model has ended the answer itself
        self.added = 0  # characters that came
        self.reread = 0  # characters given back
        self._text = ""
        self._at = 0
        self._raw: list[str] | None = None  # what was read since the mark

    def add(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0
        self.added += len(text)

    # --- marks: what turns out to be no markup is read again ----------------------------------------

    def mark(self) -> None:
        """Remember what is read from here on."""
        self._raw = []

    def unmark(self) -> None:
        """Forget what was read: it is certain."""
        self._raw = None

    def rewind(self) -> None:
        """Go back to the mark."""
        given_back = "".join(self._raw or ())
        self.reread += len(given_back)
        self._text = given_back + self._text[self._at :]
        self._at = 0
        self._raw = None

    # --- reading ------------------------------------------------------------------------------------

    def take(self, count: int) -> str:
        """The next `count` characters, which must have come."""
        text = self._text[self._at : self._at + count]
        self._at += len(text)
        if self._raw is not None:
            self._raw.append(text)
        return text

    def peek(self) -> Steps[str]:
        """The next character; empty at the end."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def comes(self, *texts: str) -> Steps[str]:
        """The longest of `texts` that comes next; empty if none does. Nothing is taken."""
        while True:
            longest = ""
            undecided = False
            for text in texts:
                if self._text.startswith(text, self._at):
                    longest = max(longest, text, key=len)
                elif not self.ended and len(self._text) - self._at < len(text):
                    undecided = undecided or text.startswith(self._text[self._at :])
            if not undecided:
                return longest
            yield

    def skip(self, *texts: str) -> Steps[bool]:
        """Take the longest of `texts` that comes next. False if none does."""
        found = yield from self.comes(*texts)
        self.take(len(found))
        return bool(found)

    def expect(self, *texts: str) -> Steps[str]:
        """Take one of `texts`. Raises `BrokenError` if none comes next."""
        found = yield from self.comes(*texts)
        if not found:
            raise BrokenError
        return self.take(len(found))

    def space(self) -> Steps[None]:
        """Take white space."""
        yield from self.run(_SPACE)

    def run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Take all that comes next of what `pattern`, a class of characters any number of times, matches."""
        parts: list[str] = []
        while True:
            match = pattern.match(self._text, self._at)
            if match and match[0]:
                parts.append(self.take(len(match[0])))
            if self._at < len(self._text) or self.ended:
                return "".join(parts)
            yield

    def give_back(self, text: str) -> None:
        """Have `text`, the last that was taken, come again."""
        if len(text) <= self._at:
            self._at -= len(text)
        else:
            self._text = text + self._text[self._at :]
            self._at = 0
        if self._raw is not None:
            self._raw = ["".join(self._raw).removesuffix(text)]

    def is_left(self, *texts: str) -> bool:
        """Whether one of `texts` is all that the answer still has."""
        return self.ended and self._text[self._at :] in texts

    def take_match(self, pattern: re.Pattern[str]) -> str:
        """What has come of what `pattern` matches, as much as it matches."""
        match = pattern.match(self._text, self._at)
        return self.take(len(match[0])) if match else ""

    def until(self, search: Search, out: Callable[[str], object], *, must_come: bool = False) -> Steps[str]:
        """Give `out` the text before the first of the texts searched for, as it is certain.

        Returns which it is, not taken; empty at the end of all text. Where one `must_come`, what may be its
        beginning stays what it is.
        """
        while True:
            found = search.find(self._text, self._at)
            if found is not None:
                place, text = found
                if place > self._at:
                    out(self.take(place - self._at))
                return text
            size = len(self._text) - self._at
            if not self.ended or must_come:
                size -= search.undecided(self._text, self._at)
            if size:
                out(self.take(size))
            if self.ended:
                return ""
            yield

    def before(self, *texts: str, most: int = 0, keep: Sequence[str] = ()) -> Steps[str]:
        """The text before the first of `texts`, which is taken, too, unless it is one to `keep`.

        Raises `BrokenError` if none comes, or not within `most` characters (0: any number).
        """
        parts: list[str] = []
        size = 0

        def out(part: str) -> None:
            nonlocal size
            size += len(part)
            if most and size > most:
                raise BrokenError
            parts.append(part)

        found = yield from self.until(search(*texts), out)
        if not found:
            raise BrokenError
        if found not in keep:
            self.take(len(found))
        return "".join(parts)


@lru_cache(maxsize=256)
def search(*texts: str) -> Search:
    """The search for `texts`, made once."""
    return Search(texts)
