"""Number types that are not quantised. Blocks are single numbers: [n] in the file, [n, 1] as values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.errors import GGUFError

Values = NDArray[np.float32]


def decode_number(blocks: NDArray[Any]) -> Values:
    with np.errstate(over="ignore", invalid="ignore"):  # a float64 out of range for float32 becomes infinite
        return blocks.astype(np.float32)[:, None]


def decode_bf16(blocks: NDArray[Any]) -> Values:
    """bfloat16 is the upper half of a float32."""
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
