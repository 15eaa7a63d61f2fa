"""From a picture to what a vision tower reads: resized, padded, cut into tiles and patches, normalised."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from puna.images.decoding import Picture

#: Means and deviations of channels that published models were trained with.
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
    """The whole picture at that size, whatever becomes of its proportions: uint8 [height, width, 3]."""
    if picture.size != (width, height):
        picture = picture.resize((width, height), filter)
    return np.asarray(picture)


def as_picture(pixels: Pixels) -> Picture:
    """The picture that [height, width, 3] are the pixels of."""
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
    """`pixels` on a canvas of one colour, `left` and `top` from its corner: uint8 [height, width, 3]."""
    own_height, own_width, _ = pixels.shape
    canvas = np.full((height, width, 3), colour, np.uint8)
    canvas[top : top + own_height, left : left + own_width] = pixels
    return canvas


def tiles(pixels: Pixels, side: int) -> Pixels:
    """Squares of `side` pixels, row by row: uint8 [tiles, side, side, 3]; sizes are multiples of it."""
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    grid = pixels.reshape(rows, side, columns, side, 3).swapaxes(1, 2)
    return np.ascontiguousarray(grid).reshape(-1, side, side, 3)


def patches(pixels: Pixels, size: int, merge: int = 1) -> Pixels:
    """Squares of `size` pixels as rows of numbers, channel by channel: uint8 [patches, 3 * size * size].

    They come row by row, or block by block of `merge` x `merge` neighbours.
    """
    height, width = pixels.shape[0] // size // merge, pixels.shape[1] // size // merge
    grid = pixels.reshape(height, merge, size, width, merge, size, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(grid).reshape(-1, 3 * size * size)


def normalised(numbers: Pixels, mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """`(v / 255 - mean) / std` of rows [n, 3 * m] whose thirds are the channels, as float32."""
    channels = numbers.reshape(len(numbers), 3, -1).astype(np.float32)
    scale = 1 / (255 * np.array(std))
    channels *= scale.astype(np.float32)[:, None]
    channels -= (np.array(mean) / np.array(std)).astype(np.float32)[:, None]
    return channels.reshape(len(numbers), -1)


def smart_size(
    width: int, height: int, unit: int, least: int, most: int, *, thinnest: int = 0
) -> tuple[int, int]:
    """(width, height) in multiples of `unit`, of about the same proportions, `least` to `most` pixels.

    Qwen2-VL's "smart resize"; halves are rounded to even, as there. Proportions beyond 200 to 1 are cut.
    A side has `thinnest` units at least before the pixels are counted.
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
