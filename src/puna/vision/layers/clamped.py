"""Linear layers that clamp their inputs and outputs, as in the towers of Gemma 4."""

from __future__ import annotations

import math
from typing import Any, Final, Self

import numpy as np

from puna.errors import ModelError
from puna.nn.layers import Linear
from puna.nn.module import WeightSource
from puna.ops import Array

#: The scalar tensors beside a weight.
BOUNDS: Final = ("input_min", "input_max", "output_min", "output_max")


class ClampedLinear(Linear):
    """Linear whose inputs and outputs are clamped, if the file has bounds beside its weight."""

    bounds: tuple[float, ...] = (-math.inf, math.inf, -math.inf, math.inf)

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        linear = super().from_source(source, name, shape, options)
        if linear is None:
            return None
        linear.bounds = cls.read_bounds(source, name, options)
        if not (linear.bounds[0] <= linear.bounds[1] and linear.bounds[2] <= linear.bounds[3]):
            raise ModelError(f"the bounds of '{name}.weight' leave nothing between them: {linear.bounds}")
        return linear

    @classmethod
    def read_bounds(cls, source: WeightSource, name: str, options: Any) -> tuple[float, ...]:
        """Return the bounds of linear `name`, in the order of `BOUNDS`."""
        found = [source.values(f"{name}.{bound}", (1,)) for bound in BOUNDS]
        return tuple(
            default if values is None else float(values[0])
            for default, values in zip(cls.bounds, found, strict=True)
        )

    def __call__(self, x: Array) -> Array:
        """Map [rows, in] to [rows, out]."""
        return self._within(super().__call__(self._within(x, *self.bounds[:2])), *self.bounds[2:])

    def _within(self, x: Array, least: float, most: float) -> Array:
        if math.isinf(least) and math.isinf(most):
            return x
        return self.ops.array(np.clip(self.ops.numpy(x), least, most))
