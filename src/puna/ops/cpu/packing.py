"""Conversion of weights to the layout of the kernels."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna import _native
from puna.gguf import GGMLType, dequantize
from puna.ops.weight import Weight

#: More rows than any layout interleaves, and a multiple of each number that one does.
_ROWS = 64
#: Values converted at a time for types without a kernel: 16 MiB of float32.
_CHUNK_VALUES = 4 << 20


def pack(weight: Weight) -> _native.Matrix:
    """Pack the matrix for the kernels."""
    data, kind = weight.bytes().reshape(-1), weight.type
    if not _native.can_decode(kind):
        data, kind = _converted(weight)
    return _native.Matrix(data, kind, *weight.shape)


def matrix(weight: Weight) -> _native.Matrix:
    """Return the packed matrix, packing it first if necessary."""
    if weight.packed is None:
        weight.packed = pack(weight)
    found: _native.Matrix = weight.packed
    return found


def packed_bytes(type: GGMLType, shape: tuple[int, ...]) -> int:
    """Return the bytes of a packed matrix of `shape`. Types without a kernel are assumed to fit float16."""
    rows, columns = shape
    kind = type if _native.can_decode(type) else GGMLType.F16
    group_rows, group_bytes = _packed_group(kind, columns)
    return -(-rows // group_rows) * group_bytes


@lru_cache(maxsize=256)
def _packed_group(type: GGMLType, columns: int) -> tuple[int, int]:
    """Return the rows that a layout interleaves and their bytes, measured by packing small zero matrices."""

    def size(rows: int) -> int:
        return _native.Matrix(np.zeros(type.nbytes(rows * columns), np.uint8), type, rows, columns).nbytes

    group_bytes = size(1)
    return _ROWS * group_bytes // max(size(_ROWS), 1) or 1, group_bytes


def _converted(weight: Weight) -> tuple[NDArray[np.uint8], GGMLType]:
    """Return the values as float16, or as float32 if they do not fit, for types without a kernel.

    float16 keeps 11 bits of each value, and its kernels round activations to 16 bits if at all: the result is
    closer to the exact product than any kernel that works on 8-bit integers.
    """
    rows, columns = weight.shape
    stored = weight.bytes()
    step = max(1, _CHUNK_VALUES // max(columns, 1))

    def converted(number: type[np.floating[Any]]) -> NDArray[Any]:
        result = np.empty((rows, columns), number)
        for begin in range(0, rows, step):
            values = dequantize(stored[begin : begin + step].reshape(-1), weight.type)
            result[begin : begin + step] = values.reshape(-1, columns)
        return result

    with np.errstate(over="ignore"):
        half = converted(np.float16)
    if np.isfinite(half).all():
        return half.reshape(-1).view(np.uint8), GGMLType.F16
    return converted(np.float32).reshape(-1).view(np.uint8), GGMLType.F32
