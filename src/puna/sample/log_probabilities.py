"""How likely the model itself thought a token, before any sampling option."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puna.errors import GenerationError
from puna.ops import Backend


def log_probabilities(
    logits: NDArray[np.float32], token: int, top: int, ops: Backend
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
    logarithm = np.float32(np.log(ops.sum_of_exponentials(logits, float(largest))))
    count = min(max(top, 0), logits.size)
    ids = ops.top_k(logits, count).tolist() if count else []  # as an option of sampling, 0 would mean all
    return (
        float(logits[token] - largest - logarithm),
        [(i, float(logits[i] - largest - logarithm)) for i in ids],
    )
