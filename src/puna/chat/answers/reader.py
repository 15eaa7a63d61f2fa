"""Streaming text for parsers that are written as if all of it were available.

A parser is a generator that yields when it needs more text and resumes when some has arrived. Its result
cannot depend on where the text was cut, because it sees nothing but the text.
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
    """Text that looked like markup and is not. Never leaves this package."""


class Search:
    """Search for the first of several texts, none of which is a prefix of another."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = tuple(texts)
        self._longest = max(map(len, texts), default=0)
        self._any = re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")
        self._begun = _beginnings(self.texts)

    def find(self, text: str, begin: int) -> tuple[int, str] | None:
        """Return the position of the first match in `text[begin:]`, and the text that matched."""
        match = self._any.search(text, begin)
        return (match.start(), match[0]) if match else None

    def undecided(self, text: str, begin: int) -> int:
        """Return how many characters at the end of `text[begin:]` may begin a match."""
        for size in range(min(self._longest - 1, len(text) - begin), 0, -1):
            if text[len(text) - size :] in self._begun:
                return size
        return 0


@lru_cache(maxsize=256)
def _beginnings(texts: tuple[str, ...]) -> frozenset[str]:
    return frozenset(text[:size] for text in texts for size in range(1, len(text)))


class Reader:
    """The received and still unread text of one answer."""

    def __init__(self) -> None:
        self.ended = False
        self.complete = False  # the model has ended the answer itself
        self.added = 0  # characters received
        self.reread = 0  # characters given back
        self._text = ""
        self._at = 0
        self._raw: list[str] | None = None  # text read since the mark

    def add(self, text: str) -> None:
        self._text = self._text[self._at :] + text
        self._at = 0
        self.added += len(text)

    @property
    def unread(self) -> str:
        """The text that has arrived and was not taken."""
        return self._text[self._at :]

    def mark(self) -> None:
        """Remember the text read from here on, for `rewind`."""
        self._raw = []

    def unmark(self) -> None:
        """Forget the text read since the mark: it is certain."""
        self._raw = None

    def rewind(self) -> None:
        """Go back to the mark, so that the text is read again."""
        given_back = "".join(self._raw or ())
        self.reread += len(given_back)
        self._text = given_back + self._text[self._at :]
        self._at = 0
        self._raw = None

    def take(self, count: int) -> str:
        """Take the next `count` characters, which must have arrived."""
        text = self._text[self._at : self._at + count]
        self._at += len(text)
        if self._raw is not None:
            self._raw.append(text)
        return text

    def peek(self) -> Steps[str]:
        """Return the next character without taking it; empty at the end."""
        while self._at == len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def comes(self, *texts: str) -> Steps[str]:
        """Return the longest of `texts` that comes next, without taking it; empty if none does."""
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
        """Take the longest of `texts` that comes next. Return False if none does."""
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
        """Take the longest match of `pattern`, which must be a repeated character class."""
        parts: list[str] = []
        while True:
            match = pattern.match(self._text, self._at)
            if match and match[0]:
                parts.append(self.take(len(match[0])))
            if self._at < len(self._text) or self.ended:
                return "".join(parts)
            yield

    def give_back(self, text: str) -> None:
        """Put back `text`, the last text taken."""
        self.reread += len(text)
        if len(text) <= self._at:
            self._at -= len(text)
        else:
            self._text = text + self._text[self._at :]
            self._at = 0
        if self._raw is not None:
            self._raw = ["".join(self._raw).removesuffix(text)]

    def is_left(self, *texts: str) -> bool:
        """Return whether the answer has ended and its unread rest is one of `texts`."""
        return self.ended and self._text[self._at :] in texts

    def take_match(self, pattern: re.Pattern[str]) -> str:
        """Take the match of `pattern` in the text that has arrived."""
        match = pattern.match(self._text, self._at)
        return self.take(len(match[0])) if match else ""

    def until(self, search: Search, out: Callable[[str], object], *, must_come: bool = False) -> Steps[str]:
        """Pass text to `out`, as it becomes certain, up to the first of the texts searched for.

        Return that text without taking it; empty at the end of the answer. With `must_come`, a possible
        beginning of a match at the end of the answer is held back.
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
        """Return the text before the first of `texts`, and take that one as well unless it is in `keep`.

        Raises `BrokenError` if none comes within `most` characters (0: any number).
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
    """Return the cached search for `texts`."""
    return Search(texts)
