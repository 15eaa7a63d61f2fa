"""Blocks of MobileNet (Qin et al., arXiv:2404.10518) as used by MobileNet V5 in Gemma 3n.

Reference: `MobileNetV5Encoder` in timm. A grid is a square array [height * width, channels].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from puna.nn.feed_forward import gelu_tanh
from puna.nn.layers import RMSNorm, Values
from puna.nn.module import Module, WeightSource, blocks, weight
from puna.ops import Array
from puna.vision.layers.attention import Groups, PatchKeys, Slices, pieces
from puna.vision.layers.convolution import Convolution, DepthwiseConvolution, Pointwise, results, rimmed


@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    """Options of a block; fields that its kind lacks are 0."""

    kind: str  # one of `_KINDS`
    in_size: int
    out_size: int
    norm_eps: float
    step: int = 1  # stride
    inner_size: int = 0
    first_kernel: int = 0
    kernel: int = 0
    heads: int = 0
    head_dim: int = 0
    key_step: int = 1  # stride of keys and values
    flat_scale: bool = False  # whether the scale tensor is one-dimensional

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim


@dataclass(frozen=True, kw_only=True)
class StageOptions:
    blocks: tuple[BlockOptions, ...]


class ChannelScale(Values):
    """Factor per channel: [1, channels, 1, 1], or [channels] from newer converters."""

    suffixes = ("",)

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: BlockOptions
    ) -> Self | None:
        stored = shape if options.flat_scale else (*shape, 1, 1)
        return super().from_source(source, name, stored, options)

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: BlockOptions) -> NDArray[np.float32]:
        return values.reshape(-1)


class Block(Module):
    """Block that keeps the grid's size or halves its side; subclasses compute it."""

    options: BlockOptions
    scale: ChannelScale | None = weight("layer_scale.gamma", "out_size", optional=True)

    def forward(self, grid: Array, side: int, slice_rows: int) -> Slices[Array]:
        """Map [side * side, in_size] to [results², out_size], `slice_rows` rows per slice."""
        raise NotImplementedError

    def added(self, grid: Array, found: Array, begin: int) -> Array:
        """Scale the output for the places from `begin` on and add the residual where shapes are kept."""
        if self.scale is not None:
            found = found * self.scale.values
        o = self.options
        if o.step > 1 or o.in_size != o.out_size:
            return found
        total: Array = grid[begin : begin + len(found)] + found
        return total


class EdgeResidual(Block):
    """Full convolution that widens, then a pointwise one that narrows."""

    wide: Convolution = weight("conv_exp", "inner_size", "in_size", "kernel", "kernel")
    wide_norm: RMSNorm = weight("bn1", "inner_size")
    narrow: Pointwise = weight("conv_pwl", "out_size", "inner_size")
    narrow_norm: RMSNorm = weight("bn2", "out_size")

    def forward(self, grid: Array, side: int, slice_rows: int) -> Slices[Array]:
        made, begin = [], 0
        for part in self.wide.parts(rimmed(self.ops, [grid]), side, self.options.step, slice_rows):
            narrow = self.narrow(gelu_tanh(self.ops, self.wide_norm(part)))
            made.append(self.added(grid, self.narrow_norm(narrow), begin))
            begin += len(part)
            yield
        return self.ops.concatenate(made)


class InvertedResidual(Block):
    """Pointwise convolutions that widen and narrow, with optional depthwise ones before and between."""

    first: DepthwiseConvolution | None = weight("dw_start.conv", "in_size", "first_kernel", optional=True)
    first_norm: RMSNorm | None = weight("dw_start.bn", "in_size", optional=True)
    wide: Pointwise = weight("pw_exp.conv", "inner_size", "in_size")
    wide_norm: RMSNorm = weight("pw_exp.bn", "inner_size")
    middle: DepthwiseConvolution | None = weight("dw_mid.conv", "inner_size", "kernel", optional=True)
    middle_norm: RMSNorm | None = weight("dw_mid.bn", "inner_size", optional=True)
    narrow: Pointwise = weight("pw_proj.conv", "out_size", "inner_size")
    narrow_norm: RMSNorm = weight("pw_proj.bn", "out_size")

    def forward(self, grid: Array, side: int, slice_rows: int) -> Slices[Array]:
        step, parts = self.options.step, in_pieces(grid, slice_rows)
        if self.first is not None:
            first_step = 1 if self.middle is not None else step
            shown = rimmed(self.ops, [grid])
            parts = normed(self.first.parts(self.ops, shown, side, first_step, slice_rows), self.first_norm)
        if self.middle is not None:
            wide = []
            for part in parts:
                wide.append(self._widened(part))
                yield
            joined = rimmed(self.ops, wide)
            wide.clear()
            parts = normed(self.middle.parts(self.ops, joined, side, step, slice_rows), self.middle_norm)
        made, begin = [], 0
        for part in parts:
            inner = self._widened(part) if self.middle is None else gelu_tanh(self.ops, part)
            made.append(self.added(grid, self.narrow_norm(self.narrow(inner)), begin))
            begin += len(part)
            yield
        return self.ops.concatenate(made)

    def _widened(self, part: Array) -> Array:
        return gelu_tanh(self.ops, self.wide_norm(self.wide(part)))


class GridAttention(Block):
    """Multi-query attention over all places; keys and values may come from a grid of half the side."""

    norm: RMSNorm = weight("norm", "in_size")
    query: Pointwise = weight("attn.query.proj", "query_size", "in_size")
    near_key: DepthwiseConvolution | None = weight("attn.key.down_conv", "in_size", "kernel", optional=True)
    near_key_norm: RMSNorm | None = weight("attn.key.norm", "in_size", optional=True)
    key: Pointwise = weight("attn.key.proj", "head_dim", "in_size")
    near_value: DepthwiseConvolution | None = weight(
        "attn.value.down_conv", "in_size", "kernel", optional=True
    )
    near_value_norm: RMSNorm | None = weight("attn.value.norm", "in_size", optional=True)
    value: Pointwise = weight("attn.value.proj", "head_dim", "in_size")
    output: Pointwise = weight("attn.output.proj", "out_size", "query_size")

    def forward(self, grid: Array, side: int, slice_rows: int) -> Slices[Array]:
        o = self.options
        shown = []
        for part in in_pieces(grid, slice_rows):
            shown.append(self.norm(part))
            yield
        joined, nearby = None if self.near_key is None else rimmed(self.ops, shown), []
        for near, norm in ((self.near_key, self.near_key_norm), (self.near_value, self.near_value_norm)):
            nearby.append(
                iter(shown)
                if near is None or joined is None
                else normed(near.parts(self.ops, joined, side, o.key_step, slice_rows), norm)
            )
        keys, made, count, begin = PatchKeys(self.ops, 1, o.head_dim), [], results(side, o.key_step) ** 2, 0
        try:
            keys.reserve(count)
            for key, value in zip(*nearby, strict=True):
                shape = len(key), 1, o.head_dim
                keys.put(begin, self.key(key).reshape(*shape), self.value(value).reshape(*shape))
                begin += len(key)
                yield
            everything = Groups(
                self.ops.array(np.zeros(len(grid), np.int32)),
                self.ops.array(np.full(len(grid), count, np.int32)),
            )
            begin = 0
            for part in shown:
                queries = self.query(part).reshape(len(part), o.heads, o.head_dim)
                found = self.output(keys.attend(queries, begin, everything, o.head_dim**-0.5))
                made.append(self.added(grid, found, begin))
                begin += len(part)
                yield
        finally:
            keys.release()
        return self.ops.concatenate(made)


_KINDS: Final[dict[str, type[Block]]] = {
    "edge": EdgeResidual,
    "inverted": InvertedResidual,
    "attention": GridAttention,
}


def block_kind(options: BlockOptions) -> type[Block]:
    return _KINDS[options.kind]


class Stage(Module):
    options: StageOptions
    blocks: Sequence[Block] = blocks("", options="blocks", choose=block_kind)

    def forward(self, grid: Array, side: int, slice_rows: int) -> Slices[Array]:
        """Map [side * side, in_size] to [results², out_size] of the last block."""
        for block in self.blocks:
            grid = yield from block.forward(grid, side, slice_rows)
            side = results(side, block.options.step)
        return grid


def in_pieces(grid: Array, slice_rows: int) -> Iterator[Array]:
    """Yield `slice_rows` rows of a grid at a time."""
    return (grid[begin:end] for begin, end in pieces(len(grid), slice_rows))


def normed(parts: Iterator[Array], norm: RMSNorm | None) -> Iterator[Array]:
    """Apply the norm, if any, to each part of a grid."""
    return parts if norm is None else map(norm, parts)
