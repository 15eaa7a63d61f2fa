"""The fields of each block type, in file order (all little-endian, no padding)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf.types import GGMLType


def unpack(packed: NDArray[np.uint8], bits: int, run: int) -> NDArray[np.uint8]:
    """Unpack codes [n, 8 // bits * bytes] from `packed` [n, bytes]."""
    if bits == 1 and run == 1:
        return np.unpackbits(packed, axis=-1, bitorder="little")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = packed.reshape(len(packed), packed.shape[1] // run, 1, run)
    codes: NDArray[np.uint8] = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(packed), packed.shape[1] * (8 // bits))


def pack(codes: NDArray[np.uint8], bits: int, run: int) -> NDArray[np.uint8]:
    """Pack `codes` [n, codes] into bytes [n, codes * bits // 8]: the inverse of `unpack`.

    Codes must be below `2**bits`.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    groups = codes.reshape(len(codes), -1, 8 // bits, run)
    joined: NDArray[np.uint8] = np.bitwise_or.reduce(groups << shifts, axis=2)
    return joined.reshape(len(codes), codes.shape[1] * bits // 8)


_HALF = "<f2"

_FIELDS: dict[GGMLType, Any] = {
    GGMLType.F32: "<f4",
    GGMLType.F16: "<f2",
    GGMLType.BF16: "<u2",
    GGMLType.F64: "<f8",
    GGMLType.I8: "i1",
    GGMLType.I16: "<i2",
    GGMLType.I32: "<i4",
    GGMLType.I64: "<i8",
    GGMLType.Q4_0: [("d", _HALF), ("qs", "u1", 16)],
    GGMLType.Q4_1: [("d", _HALF), ("m", _HALF), ("qs", "u1", 16)],
    GGMLType.Q5_0: [("d", _HALF), ("qh", "u1", 4), ("qs", "u1", 16)],
    GGMLType.Q5_1: [("d", _HALF), ("m", _HALF), ("qh", "u1", 4), ("qs", "u1", 16)],
    GGMLType.Q8_0: [("d", _HALF), ("qs", "i1", 32)],
    GGMLType.Q8_1: [("d", _HALF), ("s", _HALF), ("qs", "i1", 32)],
    GGMLType.IQ4_NL: [("d", _HALF), ("qs", "u1", 16)],
    GGMLType.MXFP4: [("e", "u1"), ("qs", "u1", 16)],
    GGMLType.MXFP4_PAIRS: [("e", "u1"), ("qs", "u1", 16)],
    GGMLType.Q2_K: [("scales", "u1", 16), ("qs", "u1", 64), ("d", _HALF), ("dmin", _HALF)],
    GGMLType.Q3_K: [("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", _HALF)],
    GGMLType.Q4_K: [("d", _HALF), ("dmin", _HALF), ("scales", "u1", 12), ("qs", "u1", 128)],
    GGMLType.Q5_K: [
        ("d", _HALF),
        ("dmin", _HALF),
        ("scales", "u1", 12),
        ("qh", "u1", 32),
        ("qs", "u1", 128),
    ],
    GGMLType.Q6_K: [("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", _HALF)],
    GGMLType.Q8_K: [("d", "<f4"), ("qs", "i1", 256), ("sums", "<i2", 16)],
    GGMLType.IQ1_S: [("d", _HALF), ("qs", "u1", 32), ("qh", "<u2", 8)],
    GGMLType.IQ1_M: [("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)],
    GGMLType.IQ2_XXS: [("d", _HALF), ("qs", [("index", "u1", 4), ("signs", "<u4")], 8)],
    GGMLType.IQ2_XS: [("d", _HALF), ("qs", "<u2", 32), ("scales", "u1", 8)],
    GGMLType.IQ2_S: [
        ("d", _HALF),
        ("qs", "u1", 32),
        ("signs", "u1", 32),
        ("qh", "u1", 8),
        ("scales", "u1", 8),
    ],
    GGMLType.IQ3_XXS: [("d", _HALF), ("qs", "u1", 64), ("signs", "<u4", 8)],
    GGMLType.IQ3_S: [
        ("d", _HALF),
        ("qs", "u1", 64),
        ("qh", "u1", 8),
        ("signs", "u1", 32),
        ("scales", "u1", 4),
    ],
    GGMLType.IQ4_XS: [("d", _HALF), ("scales_h", "u1", 2), ("scales_l", "u1", 4), ("qs", "u1", 128)],
    GGMLType.TQ1_0: [("qs", "u1", 48), ("qh", "u1", 4), ("d", _HALF)],
    GGMLType.TQ2_0: [("qs", "u1", 64), ("d", _HALF)],
}

LAYOUTS: dict[GGMLType, np.dtype[Any]] = {kind: np.dtype(fields) for kind, fields in _FIELDS.items()}
