"""Convolutions over a grid of patches, computed as matrix products with each place's neighbours.

A grid is an array [height * width, channels]. Places outside it read the row of zeros that `rimmed` appends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from puna.nn.layers import Linear, Values
from puna.nn.module import WeightSource
from puna.ops import Array, Backend, Weight
from puna.vision.layers.attention import pieces


def neighbours(
    side: int,
    kernel: int,
    step: int,
    before: int,
    after: int,
    width: int | None = None,
    beside: tuple[int, int] | None = None,
) -> NDArray[np.int64]:
    """Return the indices that a convolution of `kernel` x `kernel` reads: [results, kernel * kernel].

    The grid is a square unless it has a `width` of its own. The kernel starts `before` places outside the
    grid and may reach `after` places beyond it, or those `beside` it along the width; places outside have the
    index of the grid's last place + 1.
    """
    width = side if width is None else width
    places = side * width
    rim = ((before, after), beside or (before, after))
    numbers = np.pad(np.arange(places).reshape(side, width), rim, constant_values=places)
    seen = np.lib.stride_tricks.sliding_window_view(numbers, (kernel, kernel))[::step, ::step]
    return np.ascontiguousarray(seen).reshape(-1, kernel**2)


def evenly(side: int, kernel: int, step: int) -> NDArray[np.int64]:
    """Return `neighbours` with TensorFlow's SAME padding, for one result per `step` places.

    The padding is split evenly; an odd place goes after the grid.
    """
    outside = max((results(side, step) - 1) * step + kernel - side, 0)
    return neighbours(side, kernel, step, outside // 2, outside - outside // 2)


def results(side: int, step: int) -> int:
    """Return the side of a convolution's output grid, one result per `step` places."""
    return -(-side // step)


def rimmed(ops: Backend, parts: Sequence[Array]) -> Array:
    """Join `parts` into a grid and append the row of zeros for places outside it."""
    return ops.concatenate([*parts, ops.array(np.zeros((1, parts[0].shape[1]), np.float32))])


class Convolution:
    """Convolution with weights [out, in, kernel, kernel] and an optional bias [1, out, 1, 1]."""

    def __init__(self, linear: Linear, kernel: int) -> None:
        self.linear = linear
        self.kernel = kernel

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        linear = _as_linear(source, name, shape)
        return None if linear is None else cls(linear, shape[-1])

    def parts(
        self, grid: Array, side: int, step: int, slice_rows: int, rim: int | None = None
    ) -> Iterator[Array]:
        """Map a `rimmed` grid [side² + 1, in] to [results², out], `slice_rows` rows at a time.

        The padding is `rim` places on each side, or SAME by default.
        """
        kernel = self.kernel
        seen = evenly(side, kernel, step) if rim is None else neighbours(side, kernel, step, rim, rim)
        return self.over(grid, seen, slice_rows)

    def over(self, grid: Array, seen: NDArray[np.int64], slice_rows: int) -> Iterator[Array]:
        """Map a `rimmed` grid to [results, out], given the places that each result sees (`neighbours`)."""
        for begin, end in pieces(len(seen), slice_rows):
            read = grid[self.linear.ops.array(seen[begin:end].reshape(-1))]
            yield self.linear(read.reshape(end - begin, -1))


class DepthwiseConvolution(Values):
    """Depthwise convolution with weights [channels, 1, kernel, kernel]."""

    @classmethod
    def stored_shape(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        channels, kernel = shape
        return channels, 1, kernel, kernel

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: Any) -> NDArray[np.float32]:
        return values.reshape(len(values), -1).T  # [kernel * kernel, channels]

    def parts(self, ops: Backend, grid: Array, side: int, step: int, slice_rows: int) -> Iterator[Array]:
        """Map a `rimmed` grid [side² + 1, channels] to [results², channels], `slice_rows` rows at a time."""
        return self.over(ops, grid, evenly(side, round(len(self.values) ** 0.5), step), slice_rows)

    def over(self, ops: Backend, grid: Array, seen: NDArray[np.int64], slice_rows: int) -> Iterator[Array]:
        """Map a `rimmed` grid to [results, channels], given the places that each result sees."""
        seen = np.ascontiguousarray(seen.T)
        for begin, end in pieces(seen.shape[1], slice_rows):
            read = (grid[ops.array(places)] for places in seen[:, begin:end])
            total = next(read) * self.values[0]
            for index, each in enumerate(read, 1):
                total = total + each * self.values[index]
            yield total


class Pointwise(Linear):
    """Pointwise convolution: a linear stored as [out, in, 1, 1]."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        return super().from_source(source, name, (*shape, 1, 1), options)


class BandLinear(Linear):
    """Linear over [bands, channels] of a place in time, with weights stored for [channels, bands]."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(f"{name}.weight", shape)
        if values is None:
            return None
        turned = values.reshape(shape[0], options.channels, -1).transpose(0, 2, 1)
        bias = source.vector(f"{name}.bias", shape[0])
        return cls.of_values(source, name, np.ascontiguousarray(turned).reshape(shape), bias)


def _as_linear(source: WeightSource, name: str, shape: tuple[int, ...]) -> Linear | None:
    """Return the convolution `name` [out, in, kernel, kernel] as a linear over flattened neighbourhoods."""
    values = source.values(f"{name}.weight", shape)
    if values is None:
        return None
    bias = source.values(f"{name}.bias", (shape[0], 1, 1))
    turned = np.ascontiguousarray(values.transpose(0, 2, 3, 1)).reshape(shape[0], -1)
    matrix = Weight.from_values(f"{name}.weight", turned)
    source.ops.pack(matrix)
    return Linear(source.ops, matrix, None if bias is None else source.ops.array(bias.reshape(-1).copy()))
