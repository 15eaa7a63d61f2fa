"""IQ1, IQ2 and IQ3 formats: 256 elements as points of a lattice, with signs and small scales.

Decoding only. A block has 8 groups of 32 elements (or 16 of 16), each with a scale of 3 or 4 bits;
every 8 (or 4) elements form one lattice point (`grids.py`). The formats differ in where they store the
bits of point indices, signs and scales.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf.blocks.layout import LAYOUTS, pack, unpack
from puna.gguf.blocks.search import TableLevels, fit_scale, importance, inverse
from puna.gguf.blocks.superblock import fit_signed, scale_groups
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
def _point_bits() -> dict[str, NDArray[np.uint8]]:
    """Return, for each table, a bit per possible point that says whether the table has it."""
    text = Path(__file__).with_name("grids.inc").read_text("ascii")
    return {
        name: np.array([int(word, 16) for word in words.split(",")], "<u8").view(np.uint8)
        for name, words in re.findall(r"^GRID\((\w+),([^)]*)\)", text, re.MULTILINE)
    }


@cache
def grid(kind: GGMLType) -> NDArray[np.float32]:
    """Return the points of a format, [points, 8 or 4]."""
    name, dimensions, coordinates = _CHOICES[kind]
    numbers = np.flatnonzero(np.unpackbits(_point_bits()[name], bitorder="little"))
    digits = numbers[:, None] // len(coordinates) ** np.arange(dimensions) % len(coordinates)
    points: NDArray[np.float32] = np.array(coordinates, np.float32)[digits]
    points.flags.writeable = False
    return points


@cache
def signs_of_seven_bits() -> NDArray[np.float32]:
    """Return the signs [128, 8] encoded by seven bits; the eighth makes the number of minus signs even."""
    bits = np.unpackbits(np.arange(128, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    bits[:, 7] = bits.sum(axis=1) % 2
    signs: NDArray[np.float32] = 1 - 2 * bits.astype(np.float32)
    signs.flags.writeable = False
    return signs


Blocks = NDArray[Any]  # structured, [n]
Values = NDArray[np.float32]  # [n, 32 or 256]

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
# Twice the sixteen values of the 4-bit float E2M1 (OCP Microscaling Formats v1.0).
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)

#: The candidates for the scaled value of largest magnitude: the largest levels of either sign, or beyond.
_IQ4_TARGETS = tuple(np.float32(target) for target in (*range(-134, -119), 107, 110, 113, 116, 120, 127))
_IQ4_LEVELS = TableLevels(_IQ4, _IQ4_TARGETS)
_E2M1_LEVELS = TableLevels(_E2M1, ())


def decode_iq4_nl(blocks: Blocks) -> Values:
    return scale_groups(_IQ4[unpack(blocks["qs"], 4, 16)], blocks["d"].astype(np.float32)[:, None])


def encode_iq4_nl(values: Values, measured: Values | None = None) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.IQ4_NL])
    blocks["d"] = fit_scale(values, _IQ4_LEVELS, measured)
    scaled = values * inverse(blocks["d"].astype(np.float32))[:, None]
    blocks["qs"] = pack(_IQ4_LEVELS.codes(scaled), 4, 16)
    return blocks


def decode_iq4_xs(blocks: Blocks) -> Values:
    """Decode eight groups of 32; scales of 4 + 2 bits, stored with an offset of 32."""
    scales = unpack(blocks["scales_l"], 4, 1) | unpack(blocks["scales_h"], 2, 1) << np.uint8(4)
    d = blocks["d"].astype(np.float32)[:, None] * (scales.astype(np.float32) - 32)
    return scale_groups(_IQ4[unpack(blocks["qs"], 4, 16)], d)


def encode_iq4_xs(values: Values, measured: Values | None = None) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.IQ4_XS])
    fit = fit_signed(values, _IQ4_LEVELS, 8, scale_low=-32, measured=measured)
    scales = (fit.scales + 32).astype(np.uint8)
    blocks["d"] = fit.d
    blocks["scales_l"] = pack(scales & np.uint8(15), 4, 1)
    blocks["scales_h"] = pack(scales >> np.uint8(4), 2, 1)
    blocks["qs"] = pack(fit.codes, 4, 16)
    return blocks


def _half_power(exponents: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return 2 ** (exponent - 128) exactly; subnormal for exponents 0 and 1."""
    wide = exponents.astype(np.uint32)
    normal = (np.maximum(wide, 2) - np.uint32(1)) << np.uint32(23)
    return np.where(wide < 2, np.uint32(0x00200000) << wide, normal).view(np.float32)


def decode_mxfp4(blocks: Blocks) -> Values:
    return scale_groups(_E2M1[unpack(blocks["qs"], 4, 16)], _half_power(blocks["e"])[:, None])


def decode_mxfp4_pairs(blocks: Blocks) -> Values:
    return scale_groups(_E2M1[unpack(blocks["qs"], 4, 1)], _half_power(blocks["e"])[:, None])


def encode_mxfp4(values: Values, measured: Values | None = None) -> Blocks:
    """Try the two powers of two around (largest value / largest level) and keep the better one."""
    blocks = np.empty(len(values), LAYOUTS[GGMLType.MXFP4])
    weights = importance(values, measured)
    largest = np.abs(values).max(axis=1)
    exponent = np.frexp(largest)[1] + 124  # the level 12 is 0.75 to 1.5 times the largest value
    best_error = np.full(len(values), np.inf)
    for candidate in (exponent, exponent + 1):
        e = np.where(largest > 0, np.clip(candidate, 0, 254), 0).astype(np.uint8)
        scale = _half_power(e)[:, None]
        scaled = values / scale
        difference = values - scale * _E2M1_LEVELS.nearest(scaled)
        error = np.einsum("ij,ij,ij->i", difference, difference, weights)
        better = error < best_error
        best_error = np.where(better, error, best_error)
        blocks["e"] = np.where(better, e, blocks["e"])
        blocks["qs"] = np.where(better[:, None], pack(_E2M1_LEVELS.codes(scaled), 4, 16), blocks["qs"])
    return blocks


_IQ1_SHIFT = np.float32(0.125)  # IQ1 points are shifted by this, up or down


def _combine(scales: Values, points: Values, signs: Values | None = None) -> Values:
    """Multiply `scales` [n, groups] by `points` and `signs`, 256 values per block in any shape [n, ...]."""
    n, groups = scales.shape
    values: Values = scales[:, :, None] * points.reshape(n, groups, -1)
    if signs is not None:
        values *= signs.reshape(n, groups, -1)
    return values.reshape(n, -1)


def _d(blocks: Blocks) -> Values:
    column: Values = blocks["d"].astype(np.float32)[:, None]
    return column


def _fields(words: NDArray[Any], bits: int, count: int) -> NDArray[Any]:
    """Return the lowest `count` bit fields of each word, each `bits` wide: [..., count]."""
    shifts = (np.arange(count) * bits).astype(words.dtype)
    fields: NDArray[Any] = words[..., None] >> shifts & words.dtype.type((1 << bits) - 1)
    return fields


def _plain_signs(packed: NDArray[np.uint8]) -> Values:
    """Return signs [n, 256] stored as one bit each."""
    return 1 - 2 * unpack(packed, 1, 1).astype(np.float32)


def _nibble_scales(blocks: Blocks) -> NDArray[np.uint8]:
    return unpack(blocks["scales"], 4, 1)


def decode_iq2_xxs(blocks: Blocks) -> Values:
    """Decode, per group of 32, four 8-bit point indices, then four times 7 sign bits and a 4-bit scale."""
    words = blocks["qs"]["signs"].astype(np.uint32)  # [n, 8]
    scales = _d(blocks) * (np.float32(0.5) + (words >> np.uint32(28)).astype(np.float32)) * np.float32(0.25)
    points = grid(GGMLType.IQ2_XXS)[blocks["qs"]["index"]]
    return _combine(scales, points, signs_of_seven_bits()[_fields(words, 7, 4)])


def decode_iq2_xs(blocks: Blocks) -> Values:
    """Decode words of a 9-bit point index and 7 sign bits; 4-bit scales for groups of 16."""
    words = blocks["qs"].astype(np.uint16)
    scales = _d(blocks) * (np.float32(0.5) + _nibble_scales(blocks)) * np.float32(0.25)
    points = grid(GGMLType.IQ2_XS)[words & np.uint16(511)]
    return _combine(scales, points, signs_of_seven_bits()[words >> np.uint16(9)])


def decode_iq2_s(blocks: Blocks) -> Values:
    """Decode point indices of 8 + 2 bits, one sign bit per element, 4-bit scales for groups of 16."""
    indices = blocks["qs"].astype(np.uint16) | unpack(blocks["qh"], 2, 1).astype(np.uint16) << np.uint16(8)
    scales = _d(blocks) * (np.float32(0.5) + _nibble_scales(blocks)) * np.float32(0.25)
    return _combine(scales, grid(GGMLType.IQ2_S)[indices], _plain_signs(blocks["signs"]))


def decode_iq3_xxs(blocks: Blocks) -> Values:
    """Decode like IQ2_XXS, with twice as many points of four coordinates, and all indices first."""
    words = blocks["signs"].astype(np.uint32)
    scales = _d(blocks) * (np.float32(0.5) + (words >> np.uint32(28)).astype(np.float32)) * np.float32(0.5)
    points = grid(GGMLType.IQ3_XXS)[blocks["qs"]]
    return _combine(scales, points, signs_of_seven_bits()[_fields(words, 7, 4)])


def decode_iq3_s(blocks: Blocks) -> Values:
    """Decode point indices of 8 + 1 bits, one sign bit per element, 4-bit scales for groups of 32."""
    indices = blocks["qs"].astype(np.uint16) | unpack(blocks["qh"], 1, 1).astype(np.uint16) << np.uint16(8)
    scales = _d(blocks) * (1 + 2 * _nibble_scales(blocks).astype(np.float32))
    return _combine(scales, grid(GGMLType.IQ3_S)[indices], _plain_signs(blocks["signs"]))


def decode_iq1_s(blocks: Blocks) -> Values:
    """Decode a word per group of 32: upper 3 bits of four point indices, a 3-bit scale, the shift's sign."""
    words = blocks["qh"].astype(np.uint16)  # [n, 8]
    high = _fields(words, 3, 4).reshape(len(words), 32)
    points = grid(GGMLType.IQ1_S)[blocks["qs"] | high << np.uint16(8)].reshape(len(words), 8, 32)
    scales = _d(blocks) * (2 * (words >> np.uint16(12) & np.uint16(7)) + 1).astype(np.float32)
    shifts = np.where(words & np.uint16(0x8000), -_IQ1_SHIFT, _IQ1_SHIFT)
    return _combine(scales, points + shifts[:, :, None])


def decode_iq1_m(blocks: Blocks) -> Values:
    """Decode nibbles of a point index's upper 3 bits and its shift's sign; 3-bit scales for groups of 16.

    Each of the four words of scales holds four of them in its low 12 bits; the upper 4 bits of the words form
    the block's float16 scale, lowest nibble first.
    """
    words = blocks["scales"].astype(np.uint16)  # [n, 4]
    pieces = words >> np.uint16(12) << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(pieces, axis=1).view(np.float16).astype(np.float32)[:, None]
    scales = d * (2 * _fields(words, 3, 4).reshape(len(words), 16).astype(np.float32) + 1)
    nibbles = unpack(blocks["qh"], 4, 1)  # [n, 32]
    indices = blocks["qs"] | (nibbles & np.uint8(7)).astype(np.uint16) << np.uint16(8)
    shifts = np.where(nibbles & np.uint8(8), -_IQ1_SHIFT, _IQ1_SHIFT)
    return _combine(scales, grid(GGMLType.IQ1_M)[indices] + shifts[:, :, None])
