"""Parts that the conformers of audio towers share (Gulati et al., arXiv:2005.08100)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from puna.errors import ModelError
from puna.nn.layers import LayerNorm, Linear, StackedLinear, Values, linear_many
from puna.nn.module import Module, weight
from puna.ops import Array, Backend
from puna.vision.layers.attention import Groups, PatchKeys, Slices, pieces
from puna.vision.layers.layers import VisionLayerOptions

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


def silu(ops: Backend, x: Array) -> Array:
    """Return x times its sigmoid (Hendrycks and Gimpel, arXiv:1606.08415)."""
    return ops.sigmoid_gate(x, x)


class Taps(Values):
    """Weights [taps, channels] of a convolution over time, of each channel by itself; transposed in files."""

    @classmethod
    def arranged(cls, values: NDArray[np.float32], options: object) -> NDArray[np.float32]:
        return values.T

    def __call__(self, padded: Array, begin: int, end: int) -> Array:
        """Return the results [begin, end) of `padded` [results + taps - 1, channels]."""
        total: Array = padded[begin:end] * self.values[0]
        for tap in range(1, len(self.values)):
            total = total + padded[begin + tap : end + tap] * self.values[tap]
        return total


#: Most states that a convolution over time reads; more in a damaged file.
_MAX_TAPS: Final = 64


def tap_count(file: GGUFFile) -> int:
    """Return the states that the layers' convolution over time reads. Raises `ModelError`."""
    tensor = file.tensors.get("a.blk.0.conv_dw.weight")
    shape = tensor.shape if tensor else ()
    if len(shape) < 2 or not 0 < shape[-1] <= _MAX_TAPS:
        raise ModelError(
            f"{file.path}: tensor 'a.blk.0.conv_dw.weight' has the shape {list(shape)}, and should have 1 to "
            f"{_MAX_TAPS} values for each channel"
        )
    return shape[-1]


@dataclass(frozen=True, kw_only=True)
class BlockConformerOptions(VisionLayerOptions):
    inner_size: int  # values of all heads
    channels: int  # of the convolution over time
    kernel: int  # states that it reads
    context: int  # states of a block, which attend to each other

    @property
    def head_dim(self) -> int:
        return self.inner_size // self.heads


class BlockConformerLayer(Module):
    """Attention within blocks and a convolution, between two halves of a feed-forward network."""

    options: BlockConformerOptions
    first_norm: LayerNorm = weight("ffn_norm", "hidden_size")
    first_up: Linear = weight("ffn_up", "feed_forward_size", "hidden_size")
    first_down: Linear = weight("ffn_down", "hidden_size", "feed_forward_size")
    attention_norm: LayerNorm = weight("ln1", "hidden_size")
    query: Linear = weight("attn_q", "inner_size", "hidden_size")
    key: Linear = weight("attn_k", "inner_size", "hidden_size")
    value: Linear = weight("attn_v", "inner_size", "hidden_size")
    output: Linear = weight("attn_out", "hidden_size", "inner_size")
    convolution_norm: LayerNorm = weight("norm_conv", "hidden_size")
    gated: StackedLinear = weight("conv_pw1", "channels", "channels", "hidden_size")
    taps: Taps = weight("conv_dw", "channels", "kernel")
    scale: Array = weight("conv_norm", "channels")
    offset: Array = weight("conv_norm.bias", "channels")
    narrow: Linear = weight("conv_pw2", "hidden_size", "channels")
    second_norm: LayerNorm = weight("ffn_norm_1", "hidden_size")
    second_up: Linear = weight("ffn_up_1", "feed_forward_size", "hidden_size")
    second_down: Linear = weight("ffn_down_1", "hidden_size", "feed_forward_size")
    last_norm: LayerNorm = weight("ln2", "hidden_size")

    def forward(self, hidden: Array, keys: PatchKeys, slice_rows: int) -> Slices[Array]:
        """Map states [states, hidden] to the same shape; `keys` has room for a block."""
        found = []
        for begin, end in pieces(len(hidden), self.options.context):
            found += yield from self._attended(hidden[begin:end], keys, slice_rows)
        return (yield from self._convolved(self.ops.concatenate(found), slice_rows))

    def _attended(self, block: Array, keys: PatchKeys, slice_rows: int) -> Slices[list[Array]]:
        """Return the slices of a block after the first half and attention.

        The score of a key also depends on its distance from the query. The key has a code of its place as
        further values, and the query what they are multiplied with.
        """
        o, ops = self.options, self.ops
        codes, asked, rows = self.codes(), [], []
        for begin, end in pieces(len(block), slice_rows):
            part = block[begin:end]
            rows.append(part + 0.5 * self._fed(part, self.first_norm, self.first_up, self.first_down))
            query, key, value = (
                each.reshape(-1, o.head_dim)
                for each in linear_many(self.attention_norm(rows[-1]), self.query, self.key, self.value)
            )
            asked.append(self._of_heads(self.asked(query, begin)))
            places = ops.array(codes[begin:end].repeat(o.heads, axis=0))
            keys.put(begin, self._of_heads([key, places]), value.reshape(-1, o.heads, o.head_dim))
            yield
        together = Groups.of(ops, [len(block)])
        for number, (begin, _) in enumerate(pieces(len(block), slice_rows)):
            found = keys.attend(asked[number], begin, together, o.head_dim**-0.5)
            rows[number] = rows[number] + self.output(found)
            yield
        return rows

    def _of_heads(self, parts: Sequence[Array]) -> Array:
        """Return `parts` [rows * heads, n] side by side: [rows, heads, sum of n]."""
        joined = self.ops.join(parts)
        of_heads: Array = joined.reshape(-1, self.options.heads, joined.shape[1])
        return of_heads

    @abstractmethod
    def codes(self) -> NDArray[np.float32]:
        """Return the code of each place of a block, which its key has: [context, values]."""

    @abstractmethod
    def asked(self, queries: Array, begin: int) -> list[Array]:
        """Return what keys and codes are multiplied with, of queries from place `begin` of a block on.

        `queries` are [rows * heads, head_dim], and the results [rows * heads, head_dim] and [rows * heads,
        values of a code].
        """

    def _convolved(self, hidden: Array, slice_rows: int) -> Slices[Array]:
        """Return states after the convolution and the second half."""
        o, ops, inner = self.options, self.ops, []
        for begin, end in pieces(len(hidden), slice_rows):
            values, gate = self.gated(self.convolution_norm(hidden[begin:end]))
            inner.append(ops.sigmoid_gate(values, gate))
            yield
        before, after = o.kernel // 2, (o.kernel - 1) // 2
        silence = [ops.array(np.zeros((count, o.channels), np.float32)) for count in (before, after) if count]
        padded = ops.concatenate([*silence[:1], *inner, *silence[1:]])
        found = []
        for begin, end in pieces(len(hidden), slice_rows):
            normed = self.taps(padded, begin, end) * self.scale + self.offset
            rows = hidden[begin:end] + self.narrow(silu(ops, normed))
            rows = rows + 0.5 * self._fed(rows, self.second_norm, self.second_up, self.second_down)
            found.append(self.last_norm(rows))
            yield
        return ops.concatenate(found)

    def _fed(self, rows: Array, norm: LayerNorm, up: Linear, down: Linear) -> Array:
        return down(silu(self.ops, up(norm(rows))))
