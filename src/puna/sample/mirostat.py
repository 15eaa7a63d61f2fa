"""Mirostat: keeping the surprise of a text near a target (Basu et al., arXiv:2007.14966)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.float64]

#: Candidates from which version 1 estimates how fast probabilities fall: llama.cpp's number.
_LOOKED_AT = 100


class Mirostat:
    """Cuts the candidates off so that a draw's surprise, in bits, is about `tau`; learns with rate `eta`."""

    def __init__(self, version: int, tau: float, eta: float, vocab_size: int) -> None:
        self._version = version
        self._tau = tau
        self._eta = eta
        self._vocab_size = vocab_size
        self._limit = 2 * tau  # the paper's mu

    def keep(self, probabilities: Probabilities) -> int:
        """How many of the candidates, in descending order, may be drawn; at least 1."""
        if self._version == 1:
            return self._by_exponent(probabilities)
        with np.errstate(divide="ignore"):
            surprising = -np.log2(probabilities) > self._limit
        return max(int(np.argmax(surprising)) if surprising.any() else probabilities.size, 1)

    def drawn(self, probability: float) -> None:
        """Learn from a draw that had this probability among those kept."""
        self._limit -= self._eta * (-np.log2(probability) - self._tau)

    def _by_exponent(self, probabilities: Probabilities) -> int:
        """The k of the paper: from the exponent of Zipf's law that the likeliest candidates follow."""
        best = probabilities[:_LOOKED_AT]
        best = best[best > 0]
        if best.size < 2:
            return 1
        ranks = np.arange(1, best.size)
        spread = np.log((ranks + 1) / ranks)
        exponent = float(spread @ np.log(best[:-1] / best[1:]) / (spread @ spread))
        excess = exponent - 1
        with np.errstate(all="ignore"):
            ratio = np.float64(excess * 2**self._limit) / (1 - np.float64(self._vocab_size) ** -excess)
            count = ratio ** (1 / np.float64(exponent))
        if not np.isfinite(count):
            return probabilities.size
        return min(max(int(count), 1), probabilities.size)
