"""Linears whose inputs and outputs are kept within bounds."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Self

import numpy as np

from puna.errors import ModelError
from puna.nn.layers import Linear
from puna.nn.module import WeightSource
from puna.ops import Array

#: In the order in which one tensor may have them of all linears.
_BOUNDS = ("input_min", "input_max", "output_min", "output_max")


class ClippedLinear(Linear):
    """The bounds are tensors of one number beside the weight, or in `v.clamp_data`, or there are none.

    `v.clamp_data` has four numbers for each linear of each layer, and for the one after all layers; the
    options say as `bound_count` how many these are, 0 if there is no such tensor.
    """

    #: The linears of a layer in that tensor.
    in_layer: ClassVar[tuple[str, ...]] = (
        "attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"
    )  # fmt: skip
    bounds: tuple[float, ...] = (-math.inf, math.inf, -math.inf, math.inf)

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        linear = super().from_source(source, name, shape, options)
        if linear is None:
            return None
        found = [source.values(f"{name}.{bound}", (1,)) for bound in _BOUNDS]
        linear.bounds = tuple(
            default if values is None else float(values[0])
            for default, values in zip(cls.bounds, found, strict=True)
        )
        if options.bound_count:
            linear.bounds = cls._packed(source, name, options.bound_count)
        if not (linear.bounds[0] <= linear.bounds[1] and linear.bounds[2] <= linear.bounds[3]):
            raise ModelError(f"the bounds of '{name}.weight' leave nothing between them: {linear.bounds}")
        return linear

    @classmethod
    def _packed(cls, source: WeightSource, name: str, count: int) -> tuple[float, ...]:
        values = source.values("v.clamp_data", (count,))
        assert values is not None
        parts = name.split(".")
        index = count // 4 - 1
        if parts[-1] in cls.in_layer:
            index = int(parts[-2]) * len(cls.in_layer) + cls.in_layer.index(parts[-1])
        return tuple(map(float, values[4 * index : 4 * index + 4]))

    def __call__(self, x: Array) -> Array:
        """[rows, in] to [rows, out]."""
        return self._within(super().__call__(self._within(x, *self.bounds[:2])), *self.bounds[2:])

    def _within(self, x: Array, least: float, most: float) -> Array:
        if math.isinf(least) and math.isinf(most):
            return x
        return self.ops.array(np.clip(self.ops.numpy(x), least, most))
