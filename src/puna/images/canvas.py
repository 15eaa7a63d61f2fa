"""Pictures on a canvas of square tiles, as Llama 3.2 Vision and Llama 4 are shown them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from puna.images.decoding import Picture
from puna.images.pixels import BILINEAR, Pixels, padded, stretched, tiles

#: Rows and columns.
Grid = tuple[int, int]


def grids(most: int) -> list[Grid]:
    """All of at most `most` tiles, row after row."""
    return [(rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)]


def on_canvas(picture: Picture, side: int, among: Iterable[Grid]) -> tuple[Pixels, Grid]:
    """The tiles of `side` pixels of a picture, uint8 [tiles, side, side, 3], and the grid they make.

    It keeps its proportions, is in the left upper corner, on black, and made larger only if it is smaller
    than a tile.
    """
    rows, columns = _best(*picture.size, side, among)
    high, wide = rows * side, columns * side
    width, height = picture.size
    size = _fitting(width, height, min(max(width, side), wide), min(max(height, side), high))
    return tiles(padded(stretched(picture, *size, BILINEAR), wide, high), side), (rows, columns)


def _best(width: int, height: int, side: int, among: Iterable[Grid]) -> Grid:
    """The smallest canvas of those that change the picture least, which make it smaller only if all do."""

    def rank(grid: Grid) -> tuple[bool, float, int]:
        rows, columns = grid
        scale = min(rows * side / height, columns * side / width)
        return scale < 1, scale if scale >= 1 else -scale, rows * columns

    return min(among, key=rank)


def _fitting(width: int, height: int, wide: int, high: int) -> tuple[int, int]:
    """(width, height) of a picture that fills one of `wide` and `high`."""
    if wide / width < high / height:
        return wide, min(max(math.floor(height * (wide / width)), 1), high)
    return min(max(math.floor(width * (high / height)), 1), wide), high
