"""Parts that the conformers of audio towers share (Gulati et al., arXiv:2005.08100)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puna.nn.layers import Values
from puna.ops import Array, Backend


def silu(ops: Backend, x: Array) -> Array:
    """Return x times its sigmoid (Hendrycks and Gimpel, arXiv:1606.08415)."""
    return ops.sigmoid_gate(x, x)


class Taps(Values):
    """Weights [taps, channels] of a convolution over time, of each channel by itself; transposed in files."""

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: object) -> NDArray[np.float32]:
        return values.T

    def __call__(self, padded: Array, begin: int, end: int) -> Array:
        """Return the results [begin, end) of `padded` [results + taps - 1, channels]."""
        total: Array = padded[begin:end] * self.values[0]
        for tap in range(1, len(self.values)):
            total = total + padded[begin + tap : end + tap] * self.values[tap]
        return total
