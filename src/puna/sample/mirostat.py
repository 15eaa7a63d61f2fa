"""Mirostat: keeping the surprise of a text near a target (Basu et al., arXiv:2007.14966)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from puna.ops import Backend
from puna.ops.sampling import Ids

#: Candidates from which version 1 estimates how fast probabilities fall: llama.cpp's number.
_LOOKED_AT = 100


class Mirostat:
    """Cuts the candidates off so that a draw's surprise, in bits, is about `tau`; learns with rate `eta`."""

    def __init__(self, version: int, tau: float, eta: float) -> None:
        self._version = version
        self._tau = tau
        self._eta = eta
        self._limit = 2 * tau  # the paper's mu

    def candidates(self, logits: NDArray[np.float32], ops: Backend) -> Ids:
        """The tokens that may be drawn, the likeliest first; `logits` [vocab] have a finite maximum."""
        largest = float(logits.max())
        logarithm = math.log(ops.sum_of_exponentials(logits, largest))
        if self._version == 1:
            best = logits[ops.top_k(logits, min(_LOOKED_AT, logits.size))]
            count = self._by_exponent(best[best > -np.inf].astype(np.float64), logits.size)
            ids = ops.top_k(logits, count)
            return ids[logits[ids] > -np.inf]
        least = largest + logarithm - self._limit * math.log(2)
        ids = np.flatnonzero(logits >= np.float32(least))
        if not ids.size:
            return ops.top_k(logits, 1)
        return ids[np.argsort(-logits[ids], kind="stable")]

    def drawn(self, probability: float) -> None:
        """Learn from a draw that had this probability among the candidates."""
        self._limit -= self._eta * (-math.log2(probability) - self._tau)

    def _by_exponent(self, best: NDArray[np.float64], size: int) -> int:
        """The k of the paper: from the exponent of Zipf's law that the likeliest tokens follow."""
        if best.size < 2:
            return 1
        ranks = np.arange(1, best.size)
        spread = np.log((ranks + 1) / ranks)
        exponent = float(spread @ (best[:-1] - best[1:]) / (spread @ spread))
        excess = exponent - 1
        with np.errstate(all="ignore"):
            ratio = np.float64(excess * 2**self._limit) / (1 - np.float64(size) ** -excess)
            count = ratio ** (1 / np.float64(exponent))
        return min(max(int(count), 1), size) if np.isfinite(count) else size
