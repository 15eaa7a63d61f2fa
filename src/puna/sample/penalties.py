"""Penalties on tokens that occurred before, or that would repeat a sequence.

DRY follows p-e-w, oobabooga/text-generation-webui#5677, as llama.cpp does it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

#: Up to this many tokens, searching the window is faster than searching the vocabulary.
_SHORT = 2048


class Penalties:
    """Repeat, frequency and presence penalties over the last `window` tokens of a sequence.

    A window of 0 turns them off, -1 is the whole history. Prompt tokens count like generated ones.
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
        """Add a token to the history; ids outside the vocabulary (image placeholders) only take a place."""
        if not self.active:
            return
        self._count(token, 1)
        if self._window > 0:
            self._recent.append(token)
            if len(self._recent) > self._window:
                self._count(self._recent.popleft(), -1)

    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return penalised logits [vocab]: a copy, or the same array when there is nothing to penalise.

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


#: The largest exponent of e in float32, which limits the length of repetitions that count.
_LARGEST_LOG: Final = 88.7228391
_MAX_PENALTY: Final = 1e30


class Dry:
    """A penalty on each token that would continue a repetition (DRY: don't repeat yourself).

    A token that would make the last n tokens and itself appear a second time loses `multiplier * base ** (n -
    allowed_length)`, if n is at least `allowed_length`. Only the last `window` tokens (-1: all) count, and n
    is at most the number of tokens after the last breaker.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        *,
        multiplier: float,
        base: float,
        allowed_length: int,
        window: int,
        breakers: Sequence[str],
    ) -> None:
        self._piece = piece
        self._multiplier = multiplier
        self._base = base
        self._allowed = allowed_length
        self._window = window
        self._breakers = [breaker.encode() for breaker in breakers if breaker]
        self._overlap = max(map(len, self._breakers), default=1) - 1
        # A longer repetition has the same penalty.
        self._longest = allowed_length + (int(_LARGEST_LOG / math.log(base)) if base > 1 else 0)
        self._tokens = np.zeros(1024, np.int32)
        self._count = 0
        self._since_breaker = 0  # tokens
        self._tail = b""  # of the text, which may begin a breaker

    def accept(self, token: int) -> None:
        """Add a token to the history."""
        if self._count == self._tokens.size:
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        self._tokens[self._count] = token
        self._count += 1
        text = self._tail + (self._piece(token) if token >= 0 else b"")
        broken = any(breaker in text for breaker in self._breakers)
        self._since_breaker = 0 if broken else self._since_breaker + 1
        self._tail = b"" if broken else text[max(len(text) - self._overlap, 0) :]

    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return penalised logits [vocab]: a copy, or the same array when nothing is repeated."""
        history = self._tokens[: self._count]
        if self._window >= 0:
            history = history[max(self._count - self._window, 0) :]
        most = min(self._since_breaker, self._longest)
        if len(history) <= self._allowed or most < self._allowed:
            return logits
        # Find earlier places of the last token, then of the last two, and so on.
        places = np.arange(len(history) - 1)
        lengths = np.zeros(len(history) - 1, np.int64)
        for length in range(most):
            places = places[places >= length]
            places = places[history[places - length] == history[-1 - length]]
            if not places.size:
                break
            lengths[places] = length + 1
        repeating = np.flatnonzero(lengths >= self._allowed)
        following = history[repeating + 1]
        known = (following >= 0) & (following < logits.size)
        if not known.any():
            return logits
        longest = np.zeros(logits.size, np.int64)
        np.maximum.at(longest, following[known], lengths[repeating[known]])
        tokens = np.unique(following[known])
        penalised = logits.copy()
        penalties = self._multiplier * np.power(float(self._base), longest[tokens] - self._allowed)
        penalised[tokens] -= np.minimum(penalties, _MAX_PENALTY).astype(np.float32)
        return penalised
