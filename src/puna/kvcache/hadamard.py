"""A transform of keys before they are rounded to few bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np

from puna.gguf import GGMLType
from puna.ops import Array, Backend, Weight

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Types of keys that are worth transforming: their numbers share scales.
_BLOCKS: Final = (GGMLType.Q8_0, GGMLType.Q4_0)
#: The most numbers of a head that are mixed: with 128, errors were no smaller.
_LARGEST: Final = 64


@dataclass(frozen=True)
class Hadamard:
    """A rotation that spreads every number of a head over many, so that none has a block's scale for itself.

    Keys have channels that are much larger than the others (Liu et al., KIVI, arXiv:2402.02750, section 3.1).
    Queries are rotated in the same way, which leaves their products with keys as they are (Ashkboos et al.,
    QuaRot, arXiv:2404.00456, section 4). Values have no such channels, and are stored as they are.

    The matrix is D H D: H is Hadamard's, whose rows are Walsh functions, and D has the signs of a bent
    function (Rothaus, 1976), which is as far as possible from all of them. So numbers with a mean, or in a
    pattern, are spread as well. D H D is symmetric, and its own inverse.
    """

    matrix: Weight  # [n, n], n a power of two that divides the head

    @classmethod
    def of(cls, ops: Backend, kind: GGMLType, head_dim: int) -> Self | None:
        """Return the transform of keys [..., head_dim] stored in `kind`, or None if they need none."""
        if kind not in _BLOCKS:
            return None
        weight = Weight.from_values("hadamard", _matrix(math.gcd(head_dim, _LARGEST)))
        ops.pack(weight)
        return cls(weight)

    def __call__(self, ops: Backend, x: Array) -> Array:
        """Rotate queries or keys [rows, heads, head_dim], or rotate them back."""
        rows, heads, dim = x.shape
        size = self.matrix.shape[0]
        parts = ops.linear(x.reshape(rows * heads * (dim // size), size), self.matrix)
        rotated: Array = parts.reshape(rows, heads, dim)
        return rotated


def _matrix(size: int) -> NDArray[np.float32]:
    """Return D H D [size, size], of a power of two."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    index = np.arange(size)
    pairs = index & index >> 1
    signs = 1 - 2 * ((pairs ^ pairs >> 2 ^ pairs >> 4) & 1)
    return (signs[:, None] * matrix * signs / math.sqrt(size)).astype(np.float32)
