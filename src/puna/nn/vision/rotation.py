"""How patches know where they lie by rotation, as heads of queries and keys know places in a text."""

from __future__ import annotations

import numpy as np

from puna.ops import Rope


def axial_rope(head_dim: int, base: float, *, neox: bool = True, axes: tuple[int, int] = (0, 1)) -> Rope:
    """Rotation whose first half of pairs goes by one axis of a place, and whose second half by the other.

    Both halves have the same frequencies.
    """
    quarter = head_dim // 4
    frequencies = np.tile(base ** (-np.arange(quarter) / quarter), 2)
    return Rope(frequencies.astype(np.float32), neox=neox, axes=np.repeat(np.array(axes, np.int32), quarter))
