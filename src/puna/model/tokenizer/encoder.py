"""What turns a stretch of ordinary text into token ids."""

from __future__ import annotations

from typing import Protocol


class Encoder(Protocol):
    def encode(self, text: str, *, first: bool) -> list[int]:
        """Ids of `text`, in which no added token is looked for.

        `first` says that the stretch begins the text or follows an added token.
        """
        ...


class WordCache:
    """Ids of short words met before. Text repeats its words, so most are looked up only once.

    Safe to share between threads: each operation is one dictionary access.
    """

    MAX_WORDS = 1 << 16
    MAX_LENGTH = 64  # longer words hardly ever come again

    def __init__(self) -> None:
        self._ids: dict[str, list[int]] = {}
        self.get = self._ids.get

    def put(self, word: str, ids: list[int]) -> None:
        if len(word) <= self.MAX_LENGTH:
            if len(self._ids) >= self.MAX_WORDS:
                self._ids.clear()
            self._ids[word] = ids
