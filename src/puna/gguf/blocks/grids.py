"""The lattice points the IQ1, IQ2 and IQ3 formats choose from.

A code of these formats is the index of a point with 8 (or 4) small coordinates. The points are a fixed subset
of all possible ones, chosen when the formats were designed and defined in ggml's `ggml-common.h`. Read as
digits (first coordinate lowest), the points of a table are in ascending order, so the subset determines the
table. `grids.inc` has it as one bit per possible point, for this module and for the kernels.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from puna.gguf.types import GGMLType

_IQ2_COORDINATES = (8, 25, 43)
_IQ1_COORDINATES = (-1, 0, 1)
_IQ3_XXS_COORDINATES = (4, 12, 20, 28, 36, 44, 52, 62)
_IQ3_S_COORDINATES = (1, 3, 5, 7, 9, 11, 13, 15)

_CHOICES: dict[GGMLType, tuple[str, int, tuple[int, ...]]] = {
    GGMLType.IQ2_XXS: ("IQ2_XXS", 8, _IQ2_COORDINATES),
    GGMLType.IQ2_XS: ("IQ2_XS", 8, _IQ2_COORDINATES),
    GGMLType.IQ2_S: ("IQ2_S", 8, _IQ2_COORDINATES),
    GGMLType.IQ1_S: ("IQ1", 8, _IQ1_COORDINATES),
    GGMLType.IQ1_M: ("IQ1", 8, _IQ1_COORDINATES),
    GGMLType.IQ3_XXS: ("IQ3_XXS", 4, _IQ3_XXS_COORDINATES),
    GGMLType.IQ3_S: ("IQ3_S", 4, _IQ3_S_COORDINATES),
}


@cache
def _chosen() -> dict[str, NDArray[np.uint8]]:
    """Of each table, a bit for every possible point."""
    text = Path(__file__).with_name("grids.inc").read_text("ascii")
    return {
        name: np.array([int(word, 16) for word in words.split(",")], "<u8").view(np.uint8)
        for name, words in re.findall(r"^GRID\((\w+),([^)]*)\)", text, re.MULTILINE)
    }


@cache
def grid(kind: GGMLType) -> NDArray[np.float32]:
    """The points of a format, [points, 8 or 4]."""
    name, dimensions, coordinates = _CHOICES[kind]
    numbers = np.flatnonzero(np.unpackbits(_chosen()[name], bitorder="little"))
    digits = numbers[:, None] // len(coordinates) ** np.arange(dimensions) % len(coordinates)
    points: NDArray[np.float32] = np.array(coordinates, np.float32)[digits]
    points.flags.writeable = False
    return points


@cache
def signs_of_seven_bits() -> NDArray[np.float32]:
    """Signs [128, 8] encoded by seven bits; the eighth sign makes the number of minuses even."""
    bits = np.unpackbits(np.arange(128, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    bits[:, 7] = bits.sum(axis=1) % 2
    signs: NDArray[np.float32] = 1 - 2 * bits.astype(np.float32)
    signs.flags.writeable = False
    return signs
