"""Into how many tiles a picture is cut, each of which a tower reads like a picture of its own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def closest_grid(width: int, height: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Rows and columns of `least` to `most` tiles whose proportions are closest to those of a picture.

    InternVL's rule: of grids that are equally close, the larger one, while the picture has more than half as
    many pixels as its tiles of `side` pixels.
    """
    grids = [
        (columns, rows)
        for columns in range(1, most + 1)
        for rows in range(1, most // columns + 1)
        if columns * rows >= least
    ]
    best, nearest = (1, 1), float("inf")
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        difference = abs(width / height - columns / rows)
        half = 0.5 * side**2 * columns * rows
        if difference < nearest or (difference == nearest and width * height > half):
            best, nearest = (columns, rows), difference
    return best[1], best[0]


def block_order(height: int, width: int, merge: int) -> NDArray[np.int64]:
    """The number each patch has row by row, in the order of `merge` x `merge` blocks: [height * width]."""
    numbers = np.arange(height * width).reshape(height // merge, merge, width // merge, merge)
    return numbers.swapaxes(1, 2).reshape(-1)


def tile_places(rows: int, columns: int, side: int) -> NDArray[np.int64]:
    """The number each patch of a grid of tiles has, tile by tile: [rows * side, columns * side]."""
    numbers = np.arange(rows * columns * side**2).reshape(rows, columns, side, side)
    return numbers.swapaxes(1, 2).reshape(rows * side, columns * side)
