"""Pixels for vision towers: resized, padded, cut into tiles and patches, normalised."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from puna.vision.decoding import Picture

#: Channel means and deviations used to train published models.
HALVES: Final = (0.5, 0.5, 0.5)
CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)

BILINEAR: Final = Image.Resampling.BILINEAR
BICUBIC: Final = Image.Resampling.BICUBIC
LANCZOS: Final = Image.Resampling.LANCZOS

Pixels = NDArray[np.uint8]


def stretched(picture: Picture, width: int, height: int, filter: Image.Resampling) -> Pixels:
    """Resize the whole picture, ignoring its proportions: uint8 [height, width, 3]."""
    if picture.size != (width, height):
        picture = picture.resize((width, height), filter)
    return np.asarray(picture)


def as_picture(pixels: Pixels) -> Picture:
    """Return the picture with pixels [height, width, 3]."""
    return Image.fromarray(pixels)


def padded(
    pixels: Pixels,
    width: int,
    height: int,
    *,
    left: int = 0,
    top: int = 0,
    colour: int | tuple[int, ...] = 0,
) -> Pixels:
    """Place `pixels` on a canvas of one colour, at `left` and `top`: uint8 [height, width, 3]."""
    own_height, own_width, _ = pixels.shape
    canvas = np.full((height, width, 3), colour, np.uint8)
    canvas[top : top + own_height, left : left + own_width] = pixels
    return canvas


def tiles(pixels: Pixels, side: int) -> Pixels:
    """Cut into squares of `side` pixels, row by row: uint8 [tiles, side, side, 3]."""
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    grid = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
    return np.ascontiguousarray(grid).reshape(-1, side, side, 3)


def patches(pixels: Pixels, size: int, merge: int = 1) -> Pixels:
    """Cut into flattened squares of `size` pixels, by channel: uint8 [patches, 3 * size * size].

    Patches are ordered row by row, or block by block of `merge` x `merge` neighbours.
    """
    height, width = pixels.shape[0] // size // merge, pixels.shape[1] // size // merge
    grid = pixels.reshape(height, merge, size, width, merge, size, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(grid).reshape(-1, 3 * size * size)


def normalised(numbers: Pixels, mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """Return `(v / 255 - mean) / std` of rows [n, 3 * m] whose thirds are the channels, as float32."""
    channels = numbers.reshape(len(numbers), 3, -1).astype(np.float32)
    scale = 1 / (255 * np.array(std))
    channels *= scale.astype(np.float32)[:, None]
    channels -= (np.array(mean) / np.array(std)).astype(np.float32)[:, None]
    return channels.reshape(len(numbers), -1)


def smart_size(
    width: int, height: int, unit: int, least: int, most: int, *, thinnest: int = 0
) -> tuple[int, int]:
    """Return (width, height) in multiples of `unit` with similar proportions and `least` to `most` pixels.

    Qwen2-VL's "smart resize", with halves rounded to even. Proportions beyond 200 to 1 are cut. Sides have at
    least `thinnest` units before the pixels are counted.
    """
    width, height = min(width, 200 * height), min(height, 200 * width)
    wide, high = (max(round(size / unit), thinnest) * unit for size in (width, height))
    if wide * high > most:
        shrink = math.sqrt(width * height / most)
        wide, high = (max(math.floor(size / shrink / unit), 1) * unit for size in (width, height))
    elif wide * high < least:
        grow = math.sqrt(least / (width * height))
        wide, high = (math.ceil(size * grow / unit) * unit for size in (width, height))
    return wide, high


#: Rows and columns.
Grid = tuple[int, int]


def grids(most: int) -> list[Grid]:
    """Return all grids of at most `most` tiles, by rows, then columns."""
    return [(rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)]


def on_canvas(picture: Picture, side: int, among: Iterable[Grid]) -> tuple[Pixels, Grid]:
    """Return a picture as tiles of `side` pixels, uint8 [tiles, side, side, 3], and their grid.

    The picture keeps its proportions in the top left corner of a black canvas, and is enlarged only if it is
    smaller than a tile.
    """
    rows, columns = _best(*picture.size, side, among)
    high, wide = rows * side, columns * side
    width, height = picture.size
    size = _fitting(width, height, min(max(width, side), wide), min(max(height, side), high))
    return tiles(padded(stretched(picture, *size, BILINEAR), wide, high), side), (rows, columns)


def _best(width: int, height: int, side: int, among: Iterable[Grid]) -> Grid:
    """Return the smallest of the canvases that scale the picture least, preferring not to shrink it."""

    def rank(grid: Grid) -> tuple[bool, float, int]:
        rows, columns = grid
        scale = min(rows * side / height, columns * side / width)
        return scale < 1, scale if scale >= 1 else -scale, rows * columns

    return min(among, key=rank)


def _fitting(width: int, height: int, wide: int, high: int) -> tuple[int, int]:
    """Return the (width, height) of a picture scaled to fit into `wide` x `high`."""
    if wide / width < high / height:
        return wide, min(max(math.floor(height * (wide / width)), 1), high)
    return min(max(math.floor(width * (high / height)), 1), wide), high


def slice_grid(width: int, height: int, side: int, most: int) -> tuple[int, int] | None:
    """Return rows and columns of slices of about `side` x `side` pixels; None if one suffices."""
    wanted = min(math.ceil(width * height / side**2), most)
    if wanted <= 1:
        return None
    best, nearest = (1, 1), float("inf")
    for count in (wanted - 1, wanted, wanted + 1):
        if count == 1 or count > most:
            continue
        for columns in range(1, count + 1):
            if count % columns:
                continue
            difference = abs(math.log(width / height) - math.log(columns / (count // columns)))
            if difference < nearest:
                best, nearest = (count // columns, columns), difference
    return best


def fitted_size(width: float, height: float, side: int, unit: int, *, enlarge: bool) -> tuple[int, int]:
    """Return (width, height) in multiples of `unit`, about `side` x `side` pixels in the same proportions.

    Smaller pictures are enlarged only with `enlarge`. Proportions beyond 200 to 1 are cut.
    """
    width, height = min(width, 200 * height), min(height, 200 * width)
    if width * height > side**2 or enlarge:
        ratio = width / height
        height = int(side / math.sqrt(ratio))
        width = int(height * ratio)
    return rounded(width, unit), rounded(height, unit)


def sliced_size(width: int, height: int, grid: tuple[int, int], side: int, unit: int) -> tuple[int, int]:
    """Return the (width, height) of each slice of a picture cut into a grid of rows and columns."""
    rows, columns = grid
    wide, high = rounded(width, columns) / columns, rounded(height, rows) / rows
    return fitted_size(wide, high, side, unit, enlarge=True)


def rounded(length: float, unit: int) -> int:
    """Return the nearest multiple of `unit` other than 0."""
    return max(round(length / unit) * unit, unit)


def closest_grid(width: int, height: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Return rows and columns of `least` to `most` tiles with proportions closest to a picture's.

    InternVL's rule: of equally close grids, the larger one if the picture has more than half the pixels of
    its tiles of `side` pixels.
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
    """Return the row-major index of each patch in the order of `merge` x `merge` blocks: [height * width]."""
    numbers = np.arange(height * width).reshape(height // merge, merge, width // merge, merge)
    return numbers.swapaxes(1, 2).reshape(-1)


def tile_places(rows: int, columns: int, side: int) -> NDArray[np.int64]:
    """Return the tile-by-tile index of each patch of a grid of tiles: [rows * side, columns * side]."""
    numbers = np.arange(rows * columns * side**2).reshape(rows, columns, side, side)
    return numbers.swapaxes(1, 2).reshape(rows * side, columns * side)
