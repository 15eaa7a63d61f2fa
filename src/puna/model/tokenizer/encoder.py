"""The interface of encoders, which turn ordinary text into token ids, and their word cache."""

from __future__ import annotations

from typing import Protocol


class Encoder(Protocol):
    def encode(self, text: str, *, first: bool) -> list[int]:
        """Token ids of `text`, without recognising added tokens.

        `first` is whether `text` is at the start of the input or follows an added token.
        """
        ...


class WordCache:
    """Caches the ids of short words, because text repeats its words.

    Safe to share between threads: each operation is a single dictionary access.
    """

    MAX_WORDS = 1 << 16
    MAX_LENGTH = 64  # longer words are rarely repeated

    def __init__(self) -> None:
        self._ids: dict[str, list[int]] = {}
        self.get = self._ids.get

    def put(self, word: str, ids: list[int]) -> None:
        if len(word) <= self.MAX_LENGTH:
            if len(self._ids) >= self.MAX_WORDS:
                self._ids.clear()
            self._ids[word] = ids
