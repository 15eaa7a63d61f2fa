"""How patches know where they lie: tables of what is added to them, and rotation by two axes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from puna.ops import Rope


def axial_rope(head_dim: int, base: float, *, neox: bool = True, axes: tuple[int, int] = (0, 1)) -> Rope:
    """Rotation whose first half of pairs goes by one axis of a place, and whose second half by the other.

    Both halves have the same frequencies.
    """
    quarter = head_dim // 4
    frequencies = np.tile(base ** (-np.arange(quarter) / quarter), 2)
    return Rope(frequencies.astype(np.float32), neox=neox, axes=np.repeat(np.array(axes, np.int32), quarter))


def resized(table: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """A table of another size: [rows, columns, n] to [height, width, n], corners staying corners.

    What lies between is interpolated linearly, first by row and then by column.
    """
    rows, columns, n = table.shape
    tall = _weights(rows, height) @ table.reshape(rows, -1)
    wide: NDArray[np.float32] = _weights(columns, width) @ tall.reshape(height, columns, n)
    return wide


def _weights(old: int, new: int) -> NDArray[np.float32]:
    """How much of each of `old` entries is in each of `new`: [new, old]."""
    places = np.arange(new) * ((old - 1) / max(new - 1, 1))
    distance = np.abs(places[:, None] - np.arange(old))
    weights: NDArray[np.float32] = np.maximum(1 - distance, 0).astype(np.float32)
    return weights
