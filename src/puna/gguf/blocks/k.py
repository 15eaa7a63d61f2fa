"""K formats: 256 elements in sub-blocks of 16 or 32, whose scales are themselves quantised.

`value = d * scale * code - dmin * min` (Q2_K, Q4_K, Q5_K) or `value = d * scale * code`
with signed codes (Q3_K, Q6_K), d and dmin being float16 and scale and min small integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf.blocks.layout import LAYOUTS, pack, unpack
from puna.gguf.blocks.search import IntegerLevels
from puna.gguf.blocks.superblock import fit_affine_groups, fit_signed, scale_groups
from puna.gguf.types import GGMLType

Blocks = NDArray[Any]  # structured, [n]
Values = NDArray[np.float32]  # [n, 256]
Bytes = NDArray[np.uint8]

_LOW_FOUR = np.uint8(15)


def _column(blocks: Blocks, field: str) -> NDArray[np.float32]:
    column: NDArray[np.float32] = blocks[field].astype(np.float32)[:, None]
    return column


# The bit layout of codes and scales in each format.


def _codes_q2(blocks: Blocks) -> Bytes:
    return unpack(blocks["qs"], 2, 32)


def _codes_q3(blocks: Blocks) -> Bytes:
    """Return codes from 0 to 7: the signed code plus 4."""
    return unpack(blocks["qs"], 2, 32) | unpack(blocks["hmask"], 1, 32) << np.uint8(2)


def _codes_q5(blocks: Blocks) -> Bytes:
    return unpack(blocks["qs"], 4, 32) | unpack(blocks["qh"], 1, 32) << np.uint8(4)


def _codes_q6(blocks: Blocks) -> Bytes:
    """Return codes from 0 to 63: the signed code plus 32."""
    return unpack(blocks["ql"], 4, 64) | unpack(blocks["qh"], 2, 32) << np.uint8(4)


def _scales_q3(packed: Bytes) -> Bytes:
    """Unpack sixteen 6-bit scales from 12 bytes: low nibbles first, then the upper two bits."""
    return unpack(packed[:, :8], 4, 8) | unpack(packed[:, 8:], 2, 4) << np.uint8(4)


def _pack_scales_q3(scales: Bytes) -> Bytes:
    return np.concatenate([pack(scales & _LOW_FOUR, 4, 8), pack(scales >> np.uint8(4), 2, 4)], axis=1)


def _scales_q4(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Unpack eight 6-bit scales and mins from 12 bytes.

    The low 6 bits of bytes 0-3 and 4-7 hold the first four of each. The other four have their low nibbles in
    bytes 8-11 and their upper two bits in the top bits of bytes 0-3 and 4-7.
    """
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate([a & np.uint8(63), c & _LOW_FOUR | a >> np.uint8(6) << np.uint8(4)], axis=1)
    mins = np.concatenate([b & np.uint8(63), c >> np.uint8(4) | b >> np.uint8(6) << np.uint8(4)], axis=1)
    return scales, mins


def _pack_scales_q4(scales: Bytes, mins: Bytes) -> Bytes:
    a = scales[:, :4] | scales[:, 4:] >> np.uint8(4) << np.uint8(6)
    b = mins[:, :4] | mins[:, 4:] >> np.uint8(4) << np.uint8(6)
    c = scales[:, 4:] & _LOW_FOUR | mins[:, 4:] << np.uint8(4)
    return np.concatenate([a, b, c], axis=1)


# Decoding: blocks to values.


def decode_q2_k(blocks: Blocks) -> Values:
    scales = _column(blocks, "d") * (blocks["scales"] & _LOW_FOUR)
    mins = _column(blocks, "dmin") * (blocks["scales"] >> np.uint8(4))
    return scale_groups(_codes_q2(blocks), scales, mins)


def decode_q3_k(blocks: Blocks) -> Values:
    scales = _column(blocks, "d") * (_scales_q3(blocks["scales"]).astype(np.float32) - 32)
    return scale_groups(_codes_q3(blocks).astype(np.float32) - 4, scales)


def decode_q4_k(blocks: Blocks) -> Values:
    scales, mins = _scales_q4(blocks["scales"])
    return scale_groups(
        unpack(blocks["qs"], 4, 32), _column(blocks, "d") * scales, _column(blocks, "dmin") * mins
    )


def decode_q5_k(blocks: Blocks) -> Values:
    scales, mins = _scales_q4(blocks["scales"])
    return scale_groups(_codes_q5(blocks), _column(blocks, "d") * scales, _column(blocks, "dmin") * mins)


def decode_q6_k(blocks: Blocks) -> Values:
    scales = _column(blocks, "d") * blocks["scales"]
    return scale_groups(_codes_q6(blocks).astype(np.float32) - 32, scales)


# Encoding: values to blocks.

_Q3_LEVELS = IntegerLevels(4)
_Q6_LEVELS = IntegerLevels(32)


def encode_q2_k(values: Values, measured: Values | None = None) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q2_K])
    fit = fit_affine_groups(values, 16, code_top=3, scale_top=15, measured=measured)
    blocks["d"], blocks["dmin"] = fit.d, fit.dmin
    blocks["qs"] = pack(fit.codes, 2, 32)
    blocks["scales"] = fit.scales | fit.mins << np.uint8(4)
    return blocks


def encode_q3_k(values: Values, measured: Values | None = None) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q3_K])
    fit = fit_signed(values, _Q3_LEVELS, 16, scale_low=-32, measured=measured)
    blocks["d"] = fit.d
    blocks["qs"] = pack(fit.codes & np.uint8(3), 2, 32)
    blocks["hmask"] = pack(fit.codes >> np.uint8(2), 1, 32)
    blocks["scales"] = _pack_scales_q3((fit.scales + 32).astype(np.uint8))
    return blocks


def encode_q4_k(values: Values, measured: Values | None = None) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q4_K])
    fit = fit_affine_groups(values, 8, code_top=15, scale_top=63, measured=measured)
    blocks["d"], blocks["dmin"] = fit.d, fit.dmin
    blocks["qs"] = pack(fit.codes, 4, 32)
    blocks["scales"] = _pack_scales_q4(fit.scales, fit.mins)
    return blocks


def encode_q5_k(values: Values, measured: Values | None = None) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q5_K])
    fit = fit_affine_groups(values, 8, code_top=31, scale_top=63, measured=measured)
    blocks["d"], blocks["dmin"] = fit.d, fit.dmin
    blocks["qs"] = pack(fit.codes & _LOW_FOUR, 4, 32)
    blocks["qh"] = pack(fit.codes >> np.uint8(4), 1, 32)
    blocks["scales"] = _pack_scales_q4(fit.scales, fit.mins)
    return blocks


def encode_q6_k(values: Values, measured: Values | None = None) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q6_K])
    fit = fit_signed(values, _Q6_LEVELS, 16, scale_low=-128, measured=measured)
    blocks["d"] = fit.d
    blocks["ql"] = pack(fit.codes & _LOW_FOUR, 4, 64)
    blocks["qh"] = pack(fit.codes >> np.uint8(4), 2, 32)
    blocks["scales"] = fit.scales
    return blocks
