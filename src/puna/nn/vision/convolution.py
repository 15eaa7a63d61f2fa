"""Convolutions over a grid of patches, as products with each place's neighbours."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from puna.nn.layers import Linear
from puna.nn.module import WeightSource
from puna.ops import Array, Weight

_SIDE = 3


class GridConvolution:
    """One of 3 x 3 without a bias, whose weights are stored as [out, in, 3, 3]; the rim counts as zeros."""

    def __init__(self, linear: Linear) -> None:
        self.linear = linear

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        out, channels = shape
        values = source.values(f"{name}.weight", (out, channels, _SIDE, _SIDE))
        if values is None:
            return None
        turned = np.ascontiguousarray(values.transpose(0, 2, 3, 1)).reshape(out, -1)
        matrix = Weight.from_values(f"{name}.weight", turned)
        source.ops.pack(matrix)
        return cls(Linear(source.ops, matrix))

    def __call__(self, grid: Array, side: int, step: int) -> Array:
        """[side * side, in] to [new * new, out], `new` being the side divided by the step, rounded up."""
        ops, (rows, channels) = self.linear.ops, grid.shape
        rim = ops.array(np.zeros((1, channels), np.float32))
        numbers = np.pad(np.arange(rows).reshape(side, side), 1, constant_values=rows)
        seen = np.lib.stride_tricks.sliding_window_view(numbers, (_SIDE, _SIDE))[::step, ::step]
        neighbours = ops.concatenate([grid, rim])[ops.array(np.ascontiguousarray(seen).reshape(-1))]
        return self.linear(neighbours.reshape(-1, channels * _SIDE**2))
