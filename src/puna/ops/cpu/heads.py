"""Products of single heads, and vectors side by side, by kernels made for more than that.

What kernels do can be replayed, and what numpy does cannot. So rows are put where they belong by the kernel
that stores keys and values, which copies those of any length to any places.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna import _native
from puna.gguf import GGMLType
from puna.ops.cpu import packing
from puna.ops.cpu.traced import Traced, empty
from puna.ops.weight import Weight

Array = NDArray[Any]


def join(arrays: Sequence[Array]) -> Array:
    """Arrays [..., n] side by side."""
    *lead, _ = arrays[0].shape
    if any(list(array.shape[:-1]) != lead for array in arrays):
        raise ValueError(f"join: arrays of {', '.join(str(list(array.shape)) for array in arrays)}")
    count, widths = math.prod(lead), [array.shape[-1] for array in arrays]
    unit = math.gcd(*widths) or 1  # what is copied at a time
    row, begin = sum(widths) // unit, 0
    result = empty(count * row, unit)
    for array, width in zip(arrays, widths, strict=True):
        places = np.arange(count)[:, None] * row + np.arange(begin, begin + width // unit)
        _put(result, places, array.reshape(-1, unit))
        begin += width // unit
    joined: Array = result.reshape(*lead, row * unit)
    return joined


def linear(x: Array, weights: Sequence[Weight]) -> Array:
    """A matrix [out, in] for each head of x [T, heads, in]: [T, heads, out]."""
    count, heads, columns = x.shape
    rows = weights[0].shape[0]
    if len(weights) != heads or any(weight.shape != (rows, columns) for weight in weights):
        raise ValueError(
            f"linear_heads: {heads} heads of {columns} numbers need as many matrices [out, {columns}], not "
            + ", ".join(str(list(weight.shape)) for weight in weights)
        )
    tokens, by_head = np.arange(count), x.reshape(heads * count, columns)
    if count > 1:
        by_head = empty(heads * count, columns)
        _put(by_head, tokens[:, None] + np.arange(heads) * count, x.reshape(-1, columns))
    result = empty(count * heads, rows)
    for head, weight in enumerate(weights):
        [product] = _native.linear(
            by_head[head * count : (head + 1) * count], [packing.matrix(weight)], [None]
        )
        _put(result, tokens * heads + head, product)
    products: Array = result.reshape(count, heads, rows)
    return products


def _put(target: Traced, places: NDArray[np.integer], rows: Array) -> None:
    """Rows `places` of `target` become `rows` [T, n]."""
    count, width = rows.shape
    _native.store_rows(
        target.reshape(-1, 1, width), GGMLType.F32, places.reshape(-1).astype(np.int32),
        rows.reshape(count, 1, width),
    )  # fmt: skip
