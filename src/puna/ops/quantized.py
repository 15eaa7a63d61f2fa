"""Conversion of numbers to and from a cache's storage types, in numpy: the definition of each type.

See `stored_form` for the layout.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf import GGMLType

_BLOCK = 32
_MAX_SCALE = 65504.0


def unpack(stored: NDArray[Any], kind: GGMLType) -> NDArray[np.float32]:
    """Return the numbers [..., dim] stored as `kind`."""
    match kind:
        case GGMLType.F32 | GGMLType.F16:
            return stored.astype(np.float32)
        case GGMLType.BF16:
            return (stored.astype(np.uint32) << 16).view(np.float32)
    scales = np.ascontiguousarray(stored[..., :2]).view(np.float16).astype(np.float32)
    codes = stored[..., 2:]
    if kind is GGMLType.Q8_0:
        numbers = np.ascontiguousarray(codes).view(np.int8).astype(np.float32)
    else:  # two codes per byte, the first 16 in the low halves
        numbers = np.concatenate([codes & 15, codes >> 4], axis=-1).astype(np.float32) - 8
    result: NDArray[np.float32] = scales * numbers
    return result.reshape(*stored.shape[:-2], stored.shape[-2] * _BLOCK)


def pack(numbers: NDArray[Any], kind: GGMLType) -> NDArray[Any]:
    """Return `numbers` [..., dim] stored as `kind`: the inverse of `unpack`, except for rounding.

    Codes are the nearest for the scale as stored. The largest magnitude of a block is at most 127 (Q8_0) or
    -8 (Q4_0) scales. A block with a number that is not finite becomes NaN.
    """
    match kind:
        case GGMLType.F32:
            return numbers.astype(np.float32)
        case GGMLType.F16:
            with np.errstate(over="ignore"):
                return numbers.astype(np.float16)
        case GGMLType.BF16:
            return _bfloat16(numbers.astype(np.float32))
    blocks = numbers.astype(np.float32).reshape(*numbers.shape[:-1], -1, _BLOCK)
    high, low = blocks.max(-1, keepdims=True), blocks.min(-1, keepdims=True)
    with np.errstate(all="ignore"):  # blocks of zeros, and non-finite blocks
        if kind is GGMLType.Q8_0:
            min_code, max_code, scale = -127, 127, np.maximum(high, -low) / np.float32(127)
        else:
            min_code, max_code, scale = -8, 7, np.where(high >= -low, high, low) / np.float32(-8)
        finite = np.isfinite(blocks).all(-1, keepdims=True)
        scale = np.where(finite, scale.clip(-_MAX_SCALE, _MAX_SCALE), np.nan).astype(np.float16)
        rounded = np.rint(blocks / scale.astype(np.float32)).clip(min_code, max_code)
    codes = np.where(finite & (scale != 0), rounded, 0).astype(np.int8)
    if kind is GGMLType.Q8_0:
        data: NDArray[Any] = codes.view(np.uint8)
    else:
        shifted = (codes + 8).astype(np.uint8)
        data = shifted[..., :16] | shifted[..., 16:] << 4
    return np.concatenate([scale.view(np.uint8), data], axis=-1)


def _bfloat16(numbers: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the upper halves, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), bits >> 16 | 0x40, rounded).astype(np.uint16)
