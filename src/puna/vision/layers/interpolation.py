"""Positions that a tower learned for one grid of patches, for grids of other sizes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def resized_positions(
    table: NDArray[np.float32], height: int, width: int, *, corners: bool = False, cubic: bool = False
) -> NDArray[np.float32]:
    """[rows, columns, n] for a grid of another size: [height * width, n].

    Between neighbours it is linear, or `cubic`, and where the grid is the smaller one, over all that lies
    under a place, as in PyTorch's `interpolate` with `antialias`. With `corners` they stay where they are,
    and places are points, as there with `align_corners`.
    """
    rows, columns, n = table.shape
    if (rows, columns) == (height, width):
        return table.reshape(-1, n)
    shares = _shares_of_points if corners else _cubic_shares if cubic else _shares
    down = shares(rows, height) @ table.reshape(rows, -1)
    across = shares(columns, width) @ down.reshape(height, columns, n)
    return np.ascontiguousarray(across.reshape(-1, n), np.float32)


def sampled_positions(table: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """[rows, columns, n] for a grid of another size: [height * width, n].

    Between neighbours it is cubic, and beyond the rim like the rim: PyTorch's `grid_sample`.
    """
    rows, columns, n = table.shape
    down = _sampling_shares(rows, height) @ table.reshape(rows, -1)
    across = _sampling_shares(columns, width) @ down.reshape(height, columns, n)
    return np.ascontiguousarray(across.reshape(-1, n), np.float32)


def resized_row(table: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """[places, n] for another number of places, linear between neighbours: [count, n]."""
    places = len(table)
    at = ((np.arange(count) + 0.5) * (places / count) - 0.5).clip(0, places - 1)
    shares = np.maximum(1 - np.abs(at[:, None] - np.arange(places)), 0.0)
    return np.ascontiguousarray(shares @ table, np.float32)


def _shares(count: int, wanted: int) -> NDArray[np.float64]:
    """How much of each of `count` places is in each of the `wanted`: [wanted, count]."""
    return _normed(np.maximum(1 - _distances(count, wanted), 0.0))


def _cubic_shares(count: int, wanted: int) -> NDArray[np.float64]:
    """Those of Keys' cubic (1981), with -0.5."""
    return _normed(_cubic(_distances(count, wanted), -0.5))


def _cubic(x: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    """Keys' cubic at the distances `x`, which begins to fall beyond 1 with the slope `a`."""
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    curve: NDArray[np.float64] = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    return curve


def _sampling_shares(count: int, wanted: int) -> NDArray[np.float64]:
    """Those of Keys' cubic with -0.75 around points: [wanted, count]."""
    points = (np.arange(wanted) + 0.5) * (count / wanted) - 0.5
    shares = np.zeros((wanted, count))
    for offset in range(-1, 3):
        places = np.floor(points).astype(np.int64) + offset
        share = _cubic(np.abs(points - places), -0.75)
        np.add.at(shares, (np.arange(wanted), places.clip(0, count - 1)), share)
    return shares


def _distances(count: int, wanted: int) -> NDArray[np.float64]:
    """How far places of `count` are from those of the `wanted`, the larger being 1: [wanted, count]."""
    scale = count / wanted
    centre = (np.arange(wanted) + 0.5) * scale
    return np.abs(np.arange(count) + 0.5 - centre[:, None]) / max(scale, 1.0)


def _normed(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    normed: NDArray[np.float64] = shares / shares.sum(axis=1, keepdims=True)
    return normed


def _shares_of_points(count: int, wanted: int) -> NDArray[np.float32]:
    """Those of points, of which the first and the last are the same: [wanted, count]."""
    points = np.arange(wanted) * ((count - 1) / max(wanted - 1, 1))
    shares: NDArray[np.float32] = np.maximum(1 - np.abs(points[:, None] - np.arange(count)), 0.0)
    return shares.astype(np.float32)
