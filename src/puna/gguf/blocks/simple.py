"""Formats of 32 elements with one scale and, in the `_1` formats, an offset."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.errors import GGUFError
from puna.gguf.blocks.layout import LAYOUTS, pack, unpack
from puna.gguf.blocks.search import IntegerLevels, fit_affine, fit_scale, inverse
from puna.gguf.types import GGMLType

Values = NDArray[np.float32]


def decode_number(blocks: NDArray[Any]) -> Values:
    with np.errstate(over="ignore", invalid="ignore"):  # a float64 beyond float32 becomes infinite
        return blocks.astype(np.float32)[:, None]


def decode_bf16(blocks: NDArray[Any]) -> Values:
    """Decode bfloat16, which is the upper half of a float32."""
    return (blocks.astype(np.uint32) << np.uint32(16)).view(np.float32)[:, None]


def encode_bf16(values: Values, measured: Values | None = None) -> NDArray[Any]:
    """Round to nearest, ties to even; NaN stays NaN."""
    bits = values[:, 0].view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    quiet_nan = bits | np.uint32(1 << 22)
    return (np.where(np.isnan(values[:, 0]), quiet_nan, rounded) >> np.uint32(16)).astype("<u2")


def encode_f16(values: Values, measured: Values | None = None) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        halves = values[:, 0].astype("<f2")
    if np.isinf(halves).any() and np.isfinite(values[np.isinf(halves)]).any():
        raise GGUFError("values above 65504 do not fit F16; use BF16 or F32")
    return halves


Blocks = NDArray[Any]  # structured, [n]

_LEVELS = {4: IntegerLevels(8), 5: IntegerLevels(16)}


def _scale(blocks: Blocks, field: str = "d") -> Values:
    column: NDArray[np.float32] = blocks[field].astype(np.float32)[:, None]
    return column


def decode_q4_0(blocks: Blocks) -> Values:
    return _scale(blocks) * (unpack(blocks["qs"], 4, 16).astype(np.float32) - 8)


def decode_q4_1(blocks: Blocks) -> Values:
    return _scale(blocks) * unpack(blocks["qs"], 4, 16) + _scale(blocks, "m")


def _five_bits(blocks: Blocks) -> Values:
    high = unpack(blocks["qh"], 1, 1) << np.uint8(4)
    return (unpack(blocks["qs"], 4, 16) | high).astype(np.float32)


def decode_q5_0(blocks: Blocks) -> Values:
    return _scale(blocks) * (_five_bits(blocks) - 16)


def decode_q5_1(blocks: Blocks) -> Values:
    return _scale(blocks) * _five_bits(blocks) + _scale(blocks, "m")


def decode_q8(blocks: Blocks) -> Values:
    """Decode Q8_0, Q8_1 and Q8_K. The sums of codes in the latter two are only used by dot products."""
    values: Values = _scale(blocks) * blocks["qs"]
    return values


def encode_q8_0(values: Values, measured: Values | None = None) -> Blocks:
    """Encode so that a block's largest value becomes +-127; ties round away from zero, as in ggml.

    `measured` has no effect.
    """
    blocks = np.empty(len(values), LAYOUTS[GGMLType.Q8_0])
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * inverse(scale)
    blocks["d"] = scale[:, 0]
    blocks["qs"] = np.trunc(2 * scaled) - np.trunc(scaled)  # exact, unlike trunc(scaled + 0.5)
    return blocks


def _encode_symmetric(
    values: Values, kind: GGMLType, bits: int, measured: Values | None
) -> tuple[Blocks, NDArray[np.uint8]]:
    """Return blocks with their scale set, and the codes shifted to start at 0."""
    levels = _LEVELS[bits]
    blocks = np.empty(len(values), LAYOUTS[kind])
    blocks["d"] = fit_scale(values, levels, measured)
    return blocks, levels.codes(values * inverse(_scale(blocks)))


def _encode_affine(
    values: Values, kind: GGMLType, bits: int, measured: Values | None
) -> tuple[Blocks, NDArray[np.uint8]]:
    top = (1 << bits) - 1
    blocks = np.empty(len(values), LAYOUTS[kind])
    blocks["d"], blocks["m"] = fit_affine(values, top, measured)
    codes = np.rint((values - _scale(blocks, "m")) * inverse(_scale(blocks)))
    return blocks, np.clip(codes, 0, top).astype(np.uint8)


def _set_codes(blocks: Blocks, codes: NDArray[np.uint8]) -> Blocks:
    blocks["qs"] = pack(codes & np.uint8(15), 4, 16)
    if "qh" in (blocks.dtype.names or ()):
        blocks["qh"] = pack(codes >> np.uint8(4), 1, 1)
    return blocks


def encode_q4_0(values: Values, measured: Values | None = None) -> Blocks:
    return _set_codes(*_encode_symmetric(values, GGMLType.Q4_0, 4, measured))


def encode_q4_1(values: Values, measured: Values | None = None) -> Blocks:
    return _set_codes(*_encode_affine(values, GGMLType.Q4_1, 4, measured))


def encode_q5_0(values: Values, measured: Values | None = None) -> Blocks:
    return _set_codes(*_encode_symmetric(values, GGMLType.Q5_0, 5, measured))


def encode_q5_1(values: Values, measured: Values | None = None) -> Blocks:
    return _set_codes(*_encode_affine(values, GGMLType.Q5_1, 5, measured))
