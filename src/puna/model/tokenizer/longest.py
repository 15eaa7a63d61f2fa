"""The longest token at a place of a text."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from operator import neg
from typing import Final, Generic, TypeVar

Text = TypeVar("Text", str, bytes)

_START: Final = 3  # lengths are kept by so many characters, or bytes, at the start of a token


class LongestMatch(Generic[Text]):
    """Finds in a text which of the tokens `ids` begins at a place, the longest of them.

    Only lengths that tokens with that start have are tried, which keeps it quick where nothing ends a token.
    """

    def __init__(self, ids: Mapping[Text, int]) -> None:
        self._ids: Mapping[Text, int] = ids
        self._short: list[int] = list(range(_START - 1, 0, -1))
        self._lengths: dict[Text, list[int]] = {}  # descending
        for text in ids:
            length = len(text)
            if length >= _START:
                known = self._lengths.setdefault(text[:_START], self._short[:])
                if (at := bisect_left(known, -length, key=neg)) == len(known) or known[at] != length:
                    known.insert(at, length)

    def find(self, text: Text, at: int) -> tuple[int, int] | None:
        """The token's id, and the index after it; None if none begins there."""
        for length in self._lengths.get(text[at : at + _START], self._short):
            piece = text[at : at + length]
            id = self._ids.get(piece)
            if id is not None:
                return id, at + len(piece)
        return None
