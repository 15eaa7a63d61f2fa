"""Making tokens less likely for having been seen."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

#: Up to this many tokens, looking through the window is quicker than through the vocabulary.
_SHORT = 2048


class Penalties:
    """Repeat, frequency and presence penalties over the last `window` tokens of a sequence.

    window: 0 switches them off, -1 takes the whole history. Prompt tokens count like generated ones.
    """

    def __init__(
        self,
        vocab_size: int,
        window: int,
        *,
        repeat: float = 1.0,
        frequency: float = 0.0,
        presence: float = 0.0,
    ) -> None:
        self.repeat = np.float32(repeat if repeat > 0 else 1.0)
        self.frequency = np.float32(frequency)
        self.presence = np.float32(presence)
        self.active = window != 0 and (self.repeat != 1 or self.frequency != 0 or self.presence != 0)
        self._counts = np.zeros(vocab_size if self.active else 0, np.int32)
        self._recent: deque[int] = deque()
        self._window = window

    def accept(self, token: int) -> None:
        """Add a token to the history; ids outside the vocabulary (image placeholders) take a place only."""
        if not self.active:
            return
        self._count(token, 1)
        if self._window > 0:
            self._recent.append(token)
            if len(self._recent) > self._window:
                self._count(self._recent.popleft(), -1)

    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Penalised logits [vocab]: a copy, or the same array when there is nothing to penalise.

        A seen token's logit is divided by `repeat` (multiplied when negative), then lowered by
        `frequency` times its count and once by `presence`.
        """
        seen = self._seen() if self.active else self._counts
        if not seen.size:
            return logits
        values = logits[seen]
        values = np.where(values < 0, values * self.repeat, values / self.repeat)
        penalised = logits.copy()
        penalised[seen] = values - self.frequency * self._counts[seen] - self.presence
        return penalised

    def _seen(self) -> NDArray[np.int64]:
        if not 0 < self._window <= _SHORT:
            return np.flatnonzero(self._counts)
        ids = np.unique(np.fromiter(self._recent, np.int64, len(self._recent)))
        return ids[(ids >= 0) & (ids < self._counts.size)]

    def _count(self, token: int, change: int) -> None:
        if 0 <= token < self._counts.size:
            self._counts[token] += change
