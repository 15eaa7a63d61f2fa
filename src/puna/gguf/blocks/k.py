"""K formats: 256 elements in sub-blocks of 16 or 32, whose scales are themselves quantised.

`value = d * scale * code - dmin * min` (Q2_K, Q4_K, Q5_K) or `value = d * scale * code`
with signed codes (Q3_K, Q6_K), d and dmin being float16 and scale and min small integers.
Encoding fits every sub-block on its own, rounds the scales to their few bits, rounds the
elements again with the scales as they are stored, and at the end fits d and dmin once more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf.blocks.bits import pack, unpack
from puna.gguf.blocks.layout import LAYOUTS
from puna.gguf.blocks.search import fit_affine, fit_scale, importance, inverse
from puna.gguf.types import GGMLType

Blocks = NDArray[Any]  # structured, [n]
Values = NDArray[np.float32]  # [n, 256]
Bytes = NDArray[np.uint8]

_LOW_FOUR = np.uint8(15)


def _column(blocks: Blocks, field: str) -> NDArray[np.float32]:
    return blocks[field].astype(np.float32)[:, None]


def _apply(
    codes: NDArray[Any], scales: NDArray[np.float32], mins: NDArray[np.float32] | None = None
) -> Values:
    """scales [n, groups] times codes [n, 256], less mins [n, groups]."""
    n, groups = scales.shape
    values = scales[:, :, None] * codes.reshape(n, groups, -1)
    if mins is not None:
        values -= mins[:, :, None]
    return values.reshape(n, -1)


# How each format keeps its codes and scales as bits.


def _codes_q2(blocks: Blocks) -> Bytes:
    return unpack(blocks["qs"], 2, 32)


def _codes_q3(blocks: Blocks) -> Bytes:
    """0 to 7, that is 4 more than the signed code."""
    return unpack(blocks["qs"], 2, 32) | unpack(blocks["hmask"], 1, 32) << np.uint8(2)


def _codes_q5(blocks: Blocks) -> Bytes:
    return unpack(blocks["qs"], 4, 32) | unpack(blocks["qh"], 1, 32) << np.uint8(4)


def _codes_q6(blocks: Blocks) -> Bytes:
    """0 to 63, that is 32 more than the signed code."""
    return unpack(blocks["ql"], 4, 64) | unpack(blocks["qh"], 2, 32) << np.uint8(4)


def _scales_q3(packed: Bytes) -> Bytes:
    """Sixteen 6-bit scales from 12 bytes: low nibbles first, then the upper two bits."""
    return unpack(packed[:, :8], 4, 8) | unpack(packed[:, 8:], 2, 4) << np.uint8(4)


def _pack_scales_q3(scales: Bytes) -> Bytes:
    return np.concatenate([pack(scales & _LOW_FOUR, 4, 8), pack(scales >> np.uint8(4), 2, 4)], axis=1)


def _scales_q4(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and mins from 12 bytes.

    The first four of each fill the low 6 bits of bytes 0-3 and 4-7; of the others the low
    nibbles share bytes 8-11 and the upper two bits are on top of bytes 0-3 and 4-7.
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


# Blocks to values.


def decode_q2_k(blocks: Blocks) -> Values:
    scales = _column(blocks, "d") * (blocks["scales"] & _LOW_FOUR)
    mins = _column(blocks, "dmin") * (blocks["scales"] >> np.uint8(4))
    return _apply(_codes_q2(blocks), scales, mins)


def decode_q3_k(blocks: Blocks) -> Values:
    scales = _column(blocks, "d") * (_scales_q3(blocks["scales"]).astype(np.float32) - 32)
    return _apply(_codes_q3(blocks).astype(np.float32) - 4, scales)


def decode_q4_k(blocks: Blocks) -> Values:
    scales, mins = _scales_q4(blocks["scales"])
    return _apply(unpack(blocks["qs"], 4, 32), _column(blocks, "d") * scales, _column(blocks, "dmin") * mins)


def decode_q5_k(blocks: Blocks) -> Values:
    scales, mins = _scales_q4(blocks["scales"])
    return _apply(_codes_q5(blocks), _column(blocks, "d") * scales, _column(blocks, "dmin") * mins)


def decode_q6_k(blocks: Blocks) -> Values:
    scales = _column(blocks, "d") * blocks["scales"]
    return _apply(_codes_q6(blocks).astype(np.float32) - 32, scales)


# Values to blocks.


def _halves(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """As float16 will keep them."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def _encode_affine(
    values: Values, blocks: Blocks, groups: int, code_top: int, scale_top: int
) -> tuple[Bytes, Bytes, Bytes]:
    """Sets d and dmin; returns codes [n, 256], scales and mins, each [n, groups]."""
    n = len(values)
    parts = values.reshape(n, groups, -1)
    scale, offset = fit_affine(parts.reshape(n * groups, -1), code_top, at_most_zero=True)
    scale, floor = scale.reshape(n, groups), -offset.reshape(n, groups)

    d = _halves(scale.max(axis=1, keepdims=True) / np.float32(scale_top))
    dmin = _halves(floor.max(axis=1, keepdims=True) / np.float32(scale_top))
    scales = np.clip(np.rint(scale * inverse(d)), 0, scale_top)
    mins = np.clip(np.rint(floor * inverse(dmin)), 0, scale_top)

    def nearest() -> NDArray[np.float32]:
        shifted = parts + (dmin * mins)[:, :, None]
        return np.clip(np.rint(shifted * inverse(d * scales)[:, :, None]), 0, code_top)

    codes = nearest()
    d, dmin = _refit_pair(parts, scales[:, :, None] * codes, mins, d, dmin)
    codes = nearest()
    blocks["d"], blocks["dmin"] = d[:, 0], dmin[:, 0]
    return codes.astype(np.uint8).reshape(n, -1), scales.astype(np.uint8), mins.astype(np.uint8)


def _sum(subscripts: str, *operands: NDArray[np.float32]) -> NDArray[np.float64]:
    """einsum over the elements of each group, widened for the sums over groups that follow."""
    result: NDArray[np.float64] = np.einsum(subscripts, *operands).astype(np.float64)
    return result


def _refit_pair(
    parts: NDArray[np.float32], steps: NDArray[np.float32], mins: NDArray[np.float32], d: Values, dmin: Values
) -> tuple[Values, Values]:
    """The least-squares best d and dmin [n, 1] for parts = d * steps - dmin * mins.

    parts and steps are [n, groups, elements], mins [n, groups]; where the equations have
    no unique solution (no mins, or nothing but mins) the given d and dmin stay.
    """
    weights = importance(parts.reshape(len(parts), -1)).reshape(parts.shape)
    weighted_steps = weights * steps
    step_step = _sum("ngi,ngi->ng", weighted_steps, steps).sum(axis=1)
    value_step = _sum("ngi,ngi->ng", weighted_steps, parts).sum(axis=1)
    step_min = (_sum("ngi->ng", weighted_steps) * mins).sum(axis=1)
    value_min = (_sum("ngi,ngi->ng", weights, parts) * mins).sum(axis=1)
    min_min = (_sum("ngi->ng", weights) * mins * mins).sum(axis=1)
    determinant = step_step * min_min - step_min * step_min
    solvable = determinant > 1e-9 * step_step * min_min
    divisor = np.where(solvable, determinant, 1)
    best_d = (min_min * value_step - step_min * value_min) / divisor
    best_dmin = (step_min * value_step - step_step * value_min) / divisor
    return (
        _halves(np.where(solvable, best_d, d[:, 0]).astype(np.float32)[:, None]),
        _halves(np.where(solvable, best_dmin, dmin[:, 0]).astype(np.float32)[:, None]),
    )


def _encode_signed(
    values: Values, blocks: Blocks, half: int, scale_low: int
) -> tuple[Bytes, NDArray[np.float32]]:
    """Sets d; returns codes [n, 256] shifted to start at 0, and signed scales [n, 16]."""
    n = len(values)
    parts = values.reshape(n, 16, 16)
    scale = fit_scale(parts.reshape(n * 16, 16), -half, half - 1).reshape(n, 16)
    peak = np.take_along_axis(scale, np.abs(scale).argmax(axis=1)[:, None], axis=1)
    d = _halves(peak / np.float32(scale_low))
    scales = np.clip(np.rint(scale * inverse(d)), scale_low, -scale_low - 1)
    for _ in range(2):
        codes = np.clip(np.rint(parts * inverse(d * scales)[:, :, None]), -half, half - 1)
        steps = scales[:, :, None] * codes
        weighted = importance(values).reshape(parts.shape) * steps
        best = np.einsum("ngi,ngi->n", weighted, parts) * inverse(np.einsum("ngi,ngi->n", weighted, steps))
        d = _halves(best[:, None])
    codes = np.clip(np.rint(parts * inverse(d * scales)[:, :, None]), -half, half - 1)
    blocks["d"] = d[:, 0]
    return (codes + half).astype(np.uint8).reshape(n, -1), scales


def encode_q2_k(values: Values) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q2_K])
    codes, scales, mins = _encode_affine(values, blocks, 16, 3, 15)
    blocks["qs"] = pack(codes, 2, 32)
    blocks["scales"] = scales | mins << np.uint8(4)
    return blocks


def encode_q3_k(values: Values) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q3_K])
    codes, scales = _encode_signed(values, blocks, 4, -32)
    blocks["qs"] = pack(codes & np.uint8(3), 2, 32)
    blocks["hmask"] = pack(codes >> np.uint8(2), 1, 32)
    blocks["scales"] = _pack_scales_q3((scales + 32).astype(np.uint8))
    return blocks


def encode_q4_k(values: Values) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q4_K])
    codes, scales, mins = _encode_affine(values, blocks, 8, 15, 63)
    blocks["qs"] = pack(codes, 4, 32)
    blocks["scales"] = _pack_scales_q4(scales, mins)
    return blocks


def encode_q5_k(values: Values) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q5_K])
    codes, scales, mins = _encode_affine(values, blocks, 8, 31, 63)
    blocks["qs"] = pack(codes & _LOW_FOUR, 4, 32)
    blocks["qh"] = pack(codes >> np.uint8(4), 1, 32)
    blocks["scales"] = _pack_scales_q4(scales, mins)
    return blocks


def encode_q6_k(values: Values) -> Blocks:
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q6_K])
    codes, scales = _encode_signed(values, blocks, 32, -128)
    blocks["ql"] = pack(codes & _LOW_FOUR, 4, 64)
    blocks["qh"] = pack(codes >> np.uint8(4), 2, 32)
    blocks["scales"] = scales
    return blocks
