"""From one row of logits to a token, in one call: in C++ where there is the extension, else in numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puna.ops import implementation
from puna.sample import transforms


def choose(
    logits: NDArray[np.float32],
    *,
    temperature: float,
    top_k: int,
    typical_p: float,
    top_p: float,
    min_p: float,
    uniform: float,
) -> int | None:
    """The token at `uniform` in [0, 1) of the distribution, or the likeliest at temperature 0.

    `logits` are contiguous. None when there is nothing to choose: no logits, a NaN or +inf among
    them, or all -inf.
    """
    if implementation() == "cpu":
        return _choose_native(logits, temperature, top_k, typical_p, top_p, min_p, uniform)
    if not logits.size:
        return None
    largest = logits.max()
    if not np.isfinite(largest):  # a NaN makes the maximum NaN
        return None
    if temperature == 0:
        return int(np.argmax(logits))
    ids = transforms.top_k(logits, top_k)
    if typical_p < 1:
        ids = ids[transforms.typical_p(transforms.softmax(logits[ids]), typical_p)]
    probabilities = transforms.softmax(transforms.temper(logits[ids], temperature))
    probabilities = probabilities[: transforms.top_p(probabilities, top_p)]
    probabilities = probabilities[: transforms.min_p(probabilities, min_p)]
    return int(ids[transforms.draw(probabilities, uniform)])


def _choose_native(
    logits: NDArray[np.float32],
    temperature: float,
    top_k: int,
    typical_p: float,
    top_p: float,
    min_p: float,
    uniform: float,
) -> int | None:
    from puna import _native

    token = _native.choose(
        logits.ctypes.data,
        logits.size,
        temperature,
        min(top_k, logits.size),
        typical_p,
        top_p,
        min_p,
        uniform,
    )
    return None if token < 0 else token
