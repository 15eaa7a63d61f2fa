"""Interpolation of position tables learned for a grid of another size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def resized_positions(
    table: NDArray[np.float32], height: int, width: int, *, corners: bool = False, cubic: bool = False
) -> NDArray[np.float32]:
    """Resize a table [rows, columns, n] to another grid: [height * width, n].

    Interpolates linearly or with `cubic`, and averages when shrinking, like PyTorch's `interpolate` with
    `antialias`. `corners` keeps the corners in place and treats places as points, like `align_corners`.
    """
    rows, columns, n = table.shape
    if (rows, columns) == (height, width):
        return table.reshape(-1, n)
    shares = _shares_of_points if corners else _cubic_shares if cubic else _shares
    down = shares(rows, height) @ table.reshape(rows, -1)
    across = shares(columns, width) @ down.reshape(height, columns, n)
    return np.ascontiguousarray(across.reshape(-1, n), np.float32)


def sampled_positions(
    table: NDArray[np.float32], height: int, width: int, *, cubic: bool = True
) -> NDArray[np.float32]:
    """Resize a table [rows, columns, n] to another grid: [height * width, n].

    Interpolates between neighbours, cubically or linearly, and clamps at the border, like PyTorch's
    `grid_sample`.
    """
    rows, columns, n = table.shape
    shares = _sampling_shares if cubic else _linear_shares
    down = shares(rows, height) @ table.reshape(rows, -1)
    across = shares(columns, width) @ down.reshape(height, columns, n)
    return np.ascontiguousarray(across.reshape(-1, n), np.float32)


def resized_row(table: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """Resize a table [places, n] linearly to `count` places: [count, n]."""
    return np.ascontiguousarray(_linear_shares(len(table), count) @ table, np.float32)


def _linear_shares(count: int, wanted: int) -> NDArray[np.float64]:
    """Return the weights of the two places around each of `wanted` points: [wanted, count]."""
    points = ((np.arange(wanted) + 0.5) * (count / wanted) - 0.5).clip(0, count - 1)
    shares: NDArray[np.float64] = np.maximum(1 - np.abs(points[:, None] - np.arange(count)), 0.0)
    return shares


def _shares(count: int, wanted: int) -> NDArray[np.float64]:
    """Return the weights of `count` places in each of `wanted`, linear: [wanted, count]."""
    return _normed(np.maximum(1 - _distances(count, wanted), 0.0))


def _cubic_shares(count: int, wanted: int) -> NDArray[np.float64]:
    """Return the weights for Keys' cubic (1981) with a = -0.5: [wanted, count]."""
    return _normed(_cubic(_distances(count, wanted), -0.5))


def _cubic(x: NDArray[np.float64], a: float) -> NDArray[np.float64]:
    """Return Keys' cubic at distances `x`; `a` is its slope at 1."""
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
    curve: NDArray[np.float64] = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    return curve


def _sampling_shares(count: int, wanted: int) -> NDArray[np.float64]:
    """Return the weights for Keys' cubic with a = -0.75 around points: [wanted, count]."""
    points = (np.arange(wanted) + 0.5) * (count / wanted) - 0.5
    shares = np.zeros((wanted, count))
    for offset in range(-1, 3):
        places = np.floor(points).astype(np.int64) + offset
        share = _cubic(np.abs(points - places), -0.75)
        np.add.at(shares, (np.arange(wanted), places.clip(0, count - 1)), share)
    return shares


def _distances(count: int, wanted: int) -> NDArray[np.float64]:
    """Return distances between `count` and `wanted` places, in units of the coarser grid: [wanted, count]."""
    scale = count / wanted
    centre = (np.arange(wanted) + 0.5) * scale
    return np.abs(np.arange(count) + 0.5 - centre[:, None]) / max(scale, 1.0)


def _normed(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    normed: NDArray[np.float64] = shares / shares.sum(axis=1, keepdims=True)
    return normed


def _shares_of_points(count: int, wanted: int) -> NDArray[np.float32]:
    """Return the weights, linear between points that share their end points: [wanted, count]."""
    points = np.arange(wanted) * ((count - 1) / max(wanted - 1, 1))
    shares: NDArray[np.float32] = np.maximum(1 - np.abs(points[:, None] - np.arange(count)), 0.0)
    return shares.astype(np.float32)
