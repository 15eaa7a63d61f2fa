"""Biases that tell attention the distance between tokens: ALiBi and T5's buckets."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from puna.nn.layers import Values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.nn.attention import SelfAttention
    from puna.ops import Array

#: Distance in tokens from which all share a bucket; not stored in files.
_FAR = 128


def linear_bias(heads: int, reach: int, steepest: float = 8.0) -> NDArray[np.float32]:
    """Return the ALiBi bias (Press et al., arXiv:2108.12409): float32 [heads, 2 * reach + 1], symmetric.

    The bias falls in proportion to the distance. For a power of two n, the heads' slopes are a geometric
    series that starts at 2^(-steepest/n); further heads take every second slope of the series for 2n.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-steepest * (head + 1) / power) for head in range(power)]
    slopes += [2 ** (-steepest / 2 * (2 * head + 1) / power) for head in range(heads - power)]
    distances = np.abs(np.arange(-reach, reach + 1))
    return (-np.array(slopes)[:, None] * distances).astype(np.float32)


def share_linear_bias(mixers: Iterable[SelfAttention], reach: int, steepest: float = 8.0) -> None:
    """Give layers' attention the ALiBi bias, one array for all that have equally many heads."""
    biases: dict[int, Array] = {}
    for mixer in mixers:
        heads = mixer.options.heads
        if heads not in biases:
            biases[heads] = mixer.ops.array(linear_bias(heads, reach, steepest))
        mixer.bias = biases[heads]


class BucketBias(Values):
    """Biases learned for each distance bucket and head (Raffel et al., arXiv:1910.10683).

    The shape is [buckets, heads]; with `options.sees_later`, tokens also attend to later ones. `values` are
    arranged by distance: float32 [heads, 257].
    """

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: Any) -> NDArray[np.float32]:
        return values[_buckets(len(values), sees_later=options.sees_later)].T


def _buckets(count: int, *, sees_later: bool) -> NDArray[np.int64]:
    """Return the bucket of each distance from -_FAR to _FAR.

    Half of the buckets (a quarter per side with `sees_later`) hold a single distance; the others widen with
    it.
    """
    later = np.arange(-_FAR, _FAR + 1)
    buckets = np.zeros(len(later), np.int64)
    if sees_later:
        count //= 2
        buckets += count * (later > 0)
        distance = np.abs(later)
    else:
        distance = np.maximum(-later, 0)
    exact = max(count // 2, 1)
    # float32 as in the reference: a logarithm close to an integer decides between two buckets.
    ratio = np.log(np.maximum(distance, 1).astype(np.float32) / np.float32(exact))
    wide = ratio / np.float32(math.log(_FAR / exact)) * np.float32(count - exact)
    wide_bucket = np.minimum(exact + wide.astype(np.int64), count - 1)
    found: NDArray[np.int64] = buckets + np.where(distance < exact, distance, wide_bucket)
    return found
