"""Added tokens: tokens whose spelling is recognised in the text before the rest is tokenised."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_WHITESPACE = " \t\n\v\f\r"


class AddedTokens:
    """Splits text at the leftmost, longest occurrences of a set of tokens.

    `strip_left` and `strip_right` are ids of tokens that remove the whitespace before or after them.
    """

    def __init__(
        self,
        ids: Mapping[str, int],
        strip_left: frozenset[int] = frozenset(),
        strip_right: frozenset[int] = frozenset(),
    ) -> None:
        self._ids = dict(ids)
        self._strip_left = strip_left
        self._strip_right = strip_right
        # The regex engine only searches for the first two characters of tokens, which skips nearly all text;
        # at each match the possible lengths are tried, longest first.
        by_start: dict[str, set[int]] = {}
        for text in self._ids:
            by_start.setdefault(text[:2], set()).add(len(text))
        self._lengths = {start: sorted(found, reverse=True) for start, found in by_start.items()}
        starts = sorted(by_start, key=len, reverse=True)
        self._start = re.compile("|".join(map(re.escape, starts))) if starts else None

    def split(self, text: str) -> Iterator[str | int]:
        """Yield pieces of text (never empty) and token ids, in order."""
        if self._start is None:
            if text:
                yield text
            return
        begin = position = 0
        while match := self._start.search(text, position):
            at = match.start()
            found = self._longest(text, at)
            if found is None:
                position = at + 1
                continue
            id = self._ids[found]
            before = text[begin:at]
            if id in self._strip_left:
                before = before.rstrip(_WHITESPACE)
            if before:
                yield before
            yield id
            begin = at + len(found)
            if id in self._strip_right:
                while begin < len(text) and text[begin] in _WHITESPACE:
                    begin += 1
            position = begin
        if begin < len(text):
            yield text[begin:]

    def _longest(self, text: str, at: int) -> str | None:
        for start in (text[at : at + 2], text[at]):
            for length in self._lengths.get(start, ()):
                candidate = text[at : at + length]
                if candidate in self._ids:
                    return candidate
        return None
