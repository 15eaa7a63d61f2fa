"""Formats whose 4-bit codes select one of sixteen non-uniform levels: IQ4_NL, IQ4_XS and MXFP4."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf.blocks.bits import pack, unpack
from puna.gguf.blocks.layout import LAYOUTS
from puna.gguf.blocks.search import TableLevels, fit_scale, importance, inverse
from puna.gguf.blocks.superblock import fit_signed, scale_groups
from puna.gguf.types import GGMLType

Blocks = NDArray[Any]  # structured, [n]
Values = NDArray[np.float32]  # [n, 32 or 256]

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
# Twice the sixteen values of the 4-bit float E2M1 (OCP Microscaling Formats v1.0).
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)

#: The largest value becomes one of the largest levels, of either sign, or is cut off.
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
    """Eight groups of 32; scales of 4 + 2 bits, stored with an offset of 32."""
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
    """2 ** (exponent - 128), exactly; subnormal for exponents 0 and 1."""
    wide = exponents.astype(np.uint32)
    normal = (np.maximum(wide, 2) - np.uint32(1)) << np.uint32(23)
    return np.where(wide < 2, np.uint32(0x00200000) << wide, normal).view(np.float32)


def decode_mxfp4(blocks: Blocks) -> Values:
    return scale_groups(_E2M1[unpack(blocks["qs"], 4, 16)], _half_power(blocks["e"])[:, None])


def decode_mxfp4_pairs(blocks: Blocks) -> Values:
    return scale_groups(_E2M1[unpack(blocks["qs"], 4, 1)], _half_power(blocks["e"])[:, None])


def encode_mxfp4(values: Values, measured: Values | None = None) -> Blocks:
    """Tries the two powers of two around (largest value / largest level) and keeps the better one."""
    blocks = np.empty(len(values), LAYOUTS[GGMLType.MXFP4])
    weights = importance(values, measured)
    largest = np.abs(values).max(axis=1)
    exponent = np.frexp(largest)[1] + 124  # makes the level 12 stand for 0.75 to 1.5 times the largest value
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
