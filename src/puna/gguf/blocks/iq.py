"""IQ1, IQ2 and IQ3 formats: 256 elements as points of a lattice, with signs and small scales.

Decoding only. A block has 8 groups of 32 elements (or 16 of 16), each with a scale of 3 or 4 bits; every 8
(or 4) elements form one lattice point (`grids.py`). The formats differ in where they store the bits of point
indices, signs and scales.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf.blocks.bits import unpack
from puna.gguf.blocks.grids import grid, signs_of_seven_bits
from puna.gguf.types import GGMLType

Blocks = NDArray[Any]  # structured, [n]
Values = NDArray[np.float32]  # [n, 256]

_IQ1_SHIFT = np.float32(0.125)  # IQ1 points are shifted by this, up or down


def _combine(scales: Values, points: Values, signs: Values | None = None) -> Values:
    """scales [n, groups] * points * signs, the latter two with 256 values per block in any shape [n, ...]."""
    n, groups = scales.shape
    values: Values = scales[:, :, None] * points.reshape(n, groups, -1)
    if signs is not None:
        values *= signs.reshape(n, groups, -1)
    return values.reshape(n, -1)


def _d(blocks: Blocks) -> Values:
    column: Values = blocks["d"].astype(np.float32)[:, None]
    return column


def _fields(words: NDArray[Any], bits: int, count: int) -> NDArray[Any]:
    """The lowest `count` bit fields of each word, each `bits` wide: [..., count]."""
    shifts = (np.arange(count) * bits).astype(words.dtype)
    fields: NDArray[Any] = words[..., None] >> shifts & words.dtype.type((1 << bits) - 1)
    return fields


def _plain_signs(packed: NDArray[np.uint8]) -> Values:
    """Signs [n, 256] stored as one bit each."""
    return 1 - 2 * unpack(packed, 1, 1).astype(np.float32)


def _nibble_scales(blocks: Blocks) -> NDArray[np.uint8]:
    return unpack(blocks["scales"], 4, 1)


def decode_iq2_xxs(blocks: Blocks) -> Values:
    """Per group of 32: four 8-bit point indices, then four times 7 sign bits and a 4-bit scale."""
    words = blocks["qs"]["signs"].astype(np.uint32)  # [n, 8]
    scales = _d(blocks) * (np.float32(0.5) + (words >> np.uint32(28)).astype(np.float32)) * np.float32(0.25)
    points = grid(GGMLType.IQ2_XXS)[blocks["qs"]["index"]]
    return _combine(scales, points, signs_of_seven_bits()[_fields(words, 7, 4)])


def decode_iq2_xs(blocks: Blocks) -> Values:
    """Words of a 9-bit point index and 7 sign bits; 4-bit scales for groups of 16."""
    words = blocks["qs"].astype(np.uint16)
    scales = _d(blocks) * (np.float32(0.5) + _nibble_scales(blocks)) * np.float32(0.25)
    points = grid(GGMLType.IQ2_XS)[words & np.uint16(511)]
    return _combine(scales, points, signs_of_seven_bits()[words >> np.uint16(9)])


def decode_iq2_s(blocks: Blocks) -> Values:
    """Point indices of 8 + 2 bits, one sign bit per element, 4-bit scales for groups of 16."""
    indices = blocks["qs"].astype(np.uint16) | unpack(blocks["qh"], 2, 1).astype(np.uint16) << np.uint16(8)
    scales = _d(blocks) * (np.float32(0.5) + _nibble_scales(blocks)) * np.float32(0.25)
    return _combine(scales, grid(GGMLType.IQ2_S)[indices], _plain_signs(blocks["signs"]))


def decode_iq3_xxs(blocks: Blocks) -> Values:
    """Like IQ2_XXS, but with twice as many points of four coordinates, and all indices before all signs."""
    words = blocks["signs"].astype(np.uint32)
    scales = _d(blocks) * (np.float32(0.5) + (words >> np.uint32(28)).astype(np.float32)) * np.float32(0.5)
    points = grid(GGMLType.IQ3_XXS)[blocks["qs"]]
    return _combine(scales, points, signs_of_seven_bits()[_fields(words, 7, 4)])


def decode_iq3_s(blocks: Blocks) -> Values:
    """Point indices of 8 + 1 bits, one sign bit per element, 4-bit scales for groups of 32."""
    indices = blocks["qs"].astype(np.uint16) | unpack(blocks["qh"], 1, 1).astype(np.uint16) << np.uint16(8)
    scales = _d(blocks) * (1 + 2 * _nibble_scales(blocks).astype(np.float32))
    return _combine(scales, grid(GGMLType.IQ3_S)[indices], _plain_signs(blocks["signs"]))


def decode_iq1_s(blocks: Blocks) -> Values:
    """One word per group of 32: upper 3 bits of four point indices, a 3-bit scale, the shift's sign."""
    words = blocks["qh"].astype(np.uint16)  # [n, 8]
    high = _fields(words, 3, 4).reshape(len(words), 32)
    points = grid(GGMLType.IQ1_S)[blocks["qs"] | high << np.uint16(8)].reshape(len(words), 8, 32)
    scales = _d(blocks) * (2 * (words >> np.uint16(12) & np.uint16(7)) + 1).astype(np.float32)
    shifts = np.where(words & np.uint16(0x8000), -_IQ1_SHIFT, _IQ1_SHIFT)
    return _combine(scales, points + shifts[:, :, None])


def decode_iq1_m(blocks: Blocks) -> Values:
    """Nibbles of the upper 3 bits of a point index and its shift's sign; 3-bit scales for groups of 16.

    Each of the four words of scales holds four of them in its low 12 bits; the upper 4 bits of the words are
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
