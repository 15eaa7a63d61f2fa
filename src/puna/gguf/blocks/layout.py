"""The fields of each block type, in file order (all little-endian, no padding)."""

from __future__ import annotations

from typing import Any

import numpy as np

from puna.gguf.types import GGMLType

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
