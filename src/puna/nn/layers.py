"""Leaf modules: a tensor of the file and one operation."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from puna.nn.low_rank import LowRank, LowRankRows
from puna.nn.module import WeightSource
from puna.ops import Array, Backend, Weight

#: Rows of a tensor that make up a linear.
Rows = slice | NDArray[np.intp]


class Linear:
    """y = x W^T + b with W [out, in] as stored: the `rows` of the tensor that the weight is named after.

    `low_rank` is added by adapters.
    """

    def __init__(
        self,
        ops: Backend,
        weight: Weight,
        bias: Array | None = None,
        rows: Rows = slice(None),
    ) -> None:
        self.ops = ops
        self.weight = weight
        self.bias = bias
        self.rows = rows
        self.low_rank: LowRank | None = None

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        weight = source.matrix(f"{name}.weight", shape)
        if weight is None:
            return None
        source.ops.pack(weight)
        return cls(source.ops, weight, source.vector(f"{name}.bias", shape[0]))

    @classmethod
    def of_values(
        cls, source: WeightSource, name: str, values: NDArray[np.float32], bias: Array | None = None
    ) -> Self:
        """Return a linear with weights `values` [out, in], derived from the tensor `name`."""
        weight = Weight.from_values(f"{name}.weight", values)
        source.ops.pack(weight)
        return cls(source.ops, weight, bias)

    def __call__(self, x: Array) -> Array:
        """Map [rows, in] to [rows, out]."""
        y = self.ops.linear(x, self.weight, self.bias)
        return y if self.low_rank is None else self.low_rank.added(x, y)


def fixed_linear(ops: Backend, values: NDArray[Any], offsets: NDArray[Any] | None = None) -> Linear:
    """Return the linear with weights `values` [out, in] and biases `offsets` [out] that no file holds."""
    fixed = Weight.from_values("fixed", values.astype(np.float32))
    ops.pack(fixed)
    return Linear(ops, fixed, None if offsets is None else ops.array(offsets.astype(np.float32)))


def linear_many(x: Array, *linears: Linear) -> list[Array]:
    """Apply several linears to the same input in one call, which reads and quantises it once."""
    weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
    results = linears[0].ops.linear_many(x, weights, biases)
    return [
        y if linear.low_rank is None else linear.low_rank.added(x, y)
        for linear, y in zip(linears, results, strict=True)
    ]


class StackedLinear:
    """Several linears of the same input whose weights are stacked in one tensor.

    The shape is the rows of each, then the common number of columns.
    """

    def __init__(self, linears: list[Linear]) -> None:
        self.linears = linears

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        *parts, columns = shape
        joined = source.matrix(f"{name}.weight", (sum(parts), columns))
        if joined is None:
            return None
        bias = source.vector(f"{name}.bias", sum(parts))
        linears, begin = [], 0
        for size in parts:
            weight = joined.row_range(begin, begin + size)
            source.ops.pack(weight)
            rows = slice(begin, begin + size)
            linears.append(Linear(source.ops, weight, None if bias is None else bias[rows], rows))
            begin += size
        return cls(linears)

    def __call__(self, x: Array) -> list[Array]:
        """Map [rows, in] to one [rows, out] per linear."""
        return linear_many(x, *self.linears)


class SeparateLinears(StackedLinear):
    """Several linears of one shape whose weights are one tensor [linears, out, in]."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        stack = source.experts(f"{name}.weight", shape)
        if stack is None:
            return None
        matrices = stack.matrices()
        for each in matrices:
            source.ops.pack(each)
        return cls([Linear(source.ops, each) for each in matrices])


class InterleavedLinear(StackedLinear):
    """Several linears of the same input whose rows alternate in one tensor, block by block.

    The shape is the number of blocks, the rows of each linear per block, then the common number of columns.
    """

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        count, *parts, columns = shape
        joined = source.matrix(f"{name}.weight", (count * sum(parts), columns))
        if joined is None:
            return None
        every = np.arange(count * sum(parts)).reshape(count, -1)
        bias = source.vector(f"{name}.bias", every.size)
        linears = []
        for part in np.split(every, np.cumsum(parts)[:-1], axis=1):
            rows = part.reshape(-1)
            weight = joined.chosen_rows(rows)
            source.ops.pack(weight)
            own = None if bias is None else bias[source.ops.array(rows)]
            linears.append(Linear(source.ops, weight, own, rows))
        joined.drop_data()
        return cls(linears)


class Values:
    """Values of a tensor, float32; subclasses may rearrange them."""

    #: Suffixes of the tensor's name after the declared name.
    suffixes: ClassVar[tuple[str, ...]] = (".weight",)

    def __init__(self, values: Array) -> None:
        self.values = values

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        for suffix in cls.suffixes:
            found = source.values(f"{name}{suffix}", cls.stored_shape(shape))
            if found is not None:
                return cls(source.ops.array(np.ascontiguousarray(cls.arranged(found, options), np.float32)))
        return None

    @classmethod
    def stored_shape(cls, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the tensor in files."""
        return shape

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: Any) -> NDArray[np.float32]:
        """Return the tensor's `values` as kept, given the options of the declaring module."""
        return values


class Embedding:
    """Table [vocab, hidden] whose rows are dequantised per token.

    `low_rank` is added by adapters.
    """

    def __init__(self, ops: Backend, weight: Weight) -> None:
        self.ops = ops
        self.weight = weight
        self.low_rank: LowRankRows | None = None

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        weight = source.matrix(f"{name}.weight", shape)
        return None if weight is None else cls(source.ops, weight)

    def __call__(self, tokens: Array) -> Array:
        """Map int32 [rows] to float32 [rows, hidden]."""
        rows = self.ops.embedding(tokens, self.weight)
        return rows if self.low_rank is None else self.low_rank.added(tokens, rows)


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * w (Zhang and Sennrich, 2019), with eps = `options.norm_eps`.

    The tensor's name may lack `.weight`.
    """

    def __init__(self, ops: Backend, weight: Array, eps: float) -> None:
        self.ops = ops
        self.weight = weight
        self.eps = eps

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        weight = source.vector(f"{name}.weight", shape[0])
        if weight is None:
            weight = source.vector(name, shape[0])
        return None if weight is None else cls(source.ops, weight, options.norm_eps)

    def __call__(self, x: Array) -> Array:
        """Map [rows, hidden] to the same shape."""
        return self.ops.rms_norm(x, self.weight, self.eps)

    def after_adding(self, x: Array, residual: Array) -> tuple[Array, Array]:
        """Return x + residual and its norm: the step between the two halves of a layer."""
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps)


def unit_norm(ops: Backend, width: int, eps: float) -> RMSNorm:
    """Return an RMS norm without weights."""
    return RMSNorm(ops, ops.array(np.ones(width, np.float32)), eps)


class Unused:
    """A tensor present in files but not used; the field is optional, and None.

    The tensor's name may lack `.weight`.
    """

    @classmethod
    def from_source(cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any) -> None:
        for full in (f"{name}.weight", name):
            if len(shape) == 2:
                source.matrix(full, (shape[0], shape[1]))
            else:
                source.vector(full, shape[0])


class LayerNorm:
    """(x - mean(x)) / sqrt(var(x) + eps) * w + b (Ba et al., arXiv:1607.06450), eps = `options.norm_eps`."""

    def __init__(self, ops: Backend, weight: Array, bias: Array | None, eps: float) -> None:
        self.ops = ops
        self.weight = weight
        self.bias = bias
        self.eps = eps

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        weight = source.vector(f"{name}.weight", shape[0])
        if weight is None:
            return None
        return cls(source.ops, weight, source.vector(f"{name}.bias", shape[0]), options.norm_eps)

    def __call__(self, x: Array) -> Array:
        """Map [rows, hidden] to the same shape."""
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps)

    def after_adding(self, x: Array, residual: Array) -> tuple[Array, Array]:
        """Return x + residual and its norm: the step between the two halves of a layer."""
        total = x + residual
        return total, self(total)


class HeadLayerNorm(LayerNorm):
    """LayerNorm without bias whose weights [heads, head_dim] differ between heads."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(f"{name}.weight", shape)
        return None if values is None else cls(source.ops, source.ops.array(values), None, options.norm_eps)
