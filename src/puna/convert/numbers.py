"""The numbers of checkpoints as float32: also bfloat16 and the 8-bit floats, which numpy lacks."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from puna.gguf import GGMLType

Values = NDArray[Any]  # of numbers; a checkpoint's become float32

_PLAIN: Final = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "u1",
}  # fmt: skip


def _small_floats(exponent_bits: int, mantissa_bits: int, bias: int, *, infinities: bool) -> Values:
    """The values of all 256 codes: a sign, an exponent, a mantissa (IEEE 754, or without infinities)."""
    codes = np.arange(128)
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    values = fraction * 2.0 ** (np.maximum(exponent, 1) - bias)
    if infinities:
        top = exponent == (1 << exponent_bits) - 1
        values[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    else:
        values[-1] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


_TABLES: Final = {
    "F8_E4M3": _small_floats(4, 3, 7, infinities=False),
    "F8_E5M2": _small_floats(5, 2, 15, infinities=True),
    "F8_E8M0": np.append(2.0 ** np.arange(-127, 128), np.nan).astype(np.float32),
}

EIGHT_BITS: Final = ("F8_E4M3", "F8_E5M2")


def decoded(data: bytes, dtype: str) -> Values:
    """The numbers in `data`, [n], float32."""
    if dtype in _TABLES:
        found: Values = _TABLES[dtype][np.frombuffer(data, np.uint8)]
        return found
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)
    return np.frombuffer(data, _PLAIN[dtype]).astype(np.float32)


def scaled_in_blocks(values: Values, scales: Values, block: tuple[int, int]) -> Values:
    """`values` [rows, columns] times the scale of each block of them, or of each row, or the only one."""
    if scales.size == 1:
        return values * scales.reshape(())
    if scales.ndim < 2 or (scales.ndim == 2 and scales.shape[1] == 1):
        return values * scales.reshape(-1, *[1] * (values.ndim - 1))
    rows, columns = block
    each = np.repeat(np.repeat(scales, rows, axis=-2), columns, axis=-1)
    scaled: Values = values * each[..., : values.shape[-2], : values.shape[-1]]
    return scaled


def mxfp4_blocks(codes: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """GGUF's blocks [..., groups * 17] of `codes` [..., groups, 16] and `scales` [..., groups].

    Both have two codes of four bits in a byte: neighbours there, 16 apart in GGUF.
    """
    low, high = codes & np.uint8(15), codes >> np.uint8(4)
    each = np.stack([low, high], axis=-1).reshape(*codes.shape[:-1], 32)
    packed = each[..., :16] | each[..., 16:] << np.uint8(4)
    blocks = np.concatenate([scales[..., None], packed], axis=-1)
    return blocks.reshape(*scales.shape[:-1], scales.shape[-1] * GGMLType.MXFP4.type_size)
