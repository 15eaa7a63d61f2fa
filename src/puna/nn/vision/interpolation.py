"""Positions that a tower learned for one grid of patches, for grids of other sizes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def resized_positions(
    table: NDArray[np.float32], height: int, width: int, *, corners: bool = False
) -> NDArray[np.float32]:
    """[rows, columns, n] for a grid of another size: [height * width, n].

    Between neighbours it is linear, and where the grid is the smaller one, over all that lies under a place,
    as in PyTorch's `interpolate` with `antialias`. With `corners` they stay where they are, and places are
    points, as there with `align_corners`.
    """
    rows, columns, n = table.shape
    shares = _shares_of_points if corners else _shares
    down = shares(rows, height) @ table.reshape(rows, -1)
    across = shares(columns, width) @ down.reshape(height, columns, n)
    return np.ascontiguousarray(across.reshape(-1, n), np.float32)


def _shares(count: int, wanted: int) -> NDArray[np.float64]:
    """How much of each of `count` places is in each of the `wanted`: [wanted, count]."""
    scale = count / wanted
    reach = max(scale, 1.0)
    centre = (np.arange(wanted) + 0.5) * scale
    distance = np.abs(np.arange(count) + 0.5 - centre[:, None])
    shares = np.maximum(1 - distance / reach, 0.0)
    normed: NDArray[np.float64] = shares / shares.sum(axis=1, keepdims=True)
    return normed


def _shares_of_points(count: int, wanted: int) -> NDArray[np.float32]:
    """Those of points, of which the first and the last are the same: [wanted, count]."""
    points = np.arange(wanted) * ((count - 1) / max(wanted - 1, 1))
    shares: NDArray[np.float32] = np.maximum(1 - np.abs(points[:, None] - np.arange(count)), 0.0)
    return shares.astype(np.float32)
