"""How likely the model itself thought a token, before any sampling option."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puna.errors import GenerationError
from puna.ops import implementation
from puna.sample import transforms


def log_probabilities(
    logits: NDArray[np.float32], token: int, top: int
) -> tuple[float, list[tuple[int, float]]]:
    """The log-probability of `token`, and the `top` likeliest tokens with theirs, descending.

    Natural logarithms of the softmax over the raw logits [vocab]. The chosen token need not be among
    the likeliest. Raises `GenerationError` when the logits have no finite maximum.
    """
    if not 0 <= token < logits.size:
        raise GenerationError(f"token {token} is not in the vocabulary of {logits.size}")
    logits = np.ascontiguousarray(logits, np.float32)
    largest = logits.max()
    if not np.isfinite(largest):
        raise GenerationError("log-probabilities: the model computed no finite logits")
    logarithm = np.float32(np.log(_sum_of_exponentials(logits, largest)))
    ids = _top(logits, min(max(top, 0), logits.size))
    return (
        float(logits[token] - largest - logarithm),
        [(int(i), float(logits[i] - largest - logarithm)) for i in ids],
    )


def _sum_of_exponentials(logits: NDArray[np.float32], largest: np.float32) -> float:
    if implementation() == "cpu":
        from puna import _native

        return float(_native.sum_of_exponentials(logits.ctypes.data, logits.size, float(largest)))
    return float(np.exp((logits - largest).astype(np.float64)).sum())


def _top(logits: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    if count == 0:
        return np.empty(0, np.int64)  # as an option of sampling, top-k of 0 would mean all
    if implementation() == "cpu":
        from puna import _native

        ids = np.empty(count, np.int64)
        _native.top_k(logits.ctypes.data, logits.size, count, ids.ctypes.data)
        return ids
    return transforms.top_k(logits, count)
