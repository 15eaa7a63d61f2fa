"""SAM's image encoder (Kirillov et al., arXiv:2304.02643): windowed attention with relative positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from puna.nn.layers import LayerNorm, Linear, StackedLinear
from puna.nn.module import Module, blocks, weight
from puna.ops import Array, Weight
from puna.vision.layers.attention import Groups, PatchKeys, Slices, pieces
from puna.vision.layers.convolution import Convolution, results, rimmed
from puna.vision.layers.interpolation import resized_positions, resized_row
from puna.vision.layers.layers import PatchEmbedding, Table

_KERNEL = 3  # kernel side of the convolutions after the layers


@dataclass(frozen=True, kw_only=True)
class SamLayerOptions:
    hidden_size: int
    feed_forward_size: int
    heads: int
    norm_eps: float
    window: int  # patches per side of a window; 0: attention is global
    places: int  # relative positions along a side

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads


@dataclass(frozen=True, kw_only=True)
class SamOptions:
    patch_size: int  # pixels
    side: int  # patches per side of the largest picture
    channels: int
    hidden_size: int
    neck_size: int
    middle_size: int
    out_size: int
    norm_eps: float
    layers: tuple[SamLayerOptions, ...]


class SamLayer(Module):
    options: SamLayerOptions
    attention_norm: LayerNorm = weight("norm1|pre_ln", "hidden_size")
    inputs: StackedLinear = weight("attn.qkv", "hidden_size", "hidden_size", "hidden_size", "hidden_size")
    output: Linear = weight("attn.proj|attn.out", "hidden_size", "hidden_size")
    rows: Table = weight("attn.rel_pos_h|attn.pos_h", "places", "head_dim")
    columns: Table = weight("attn.rel_pos_w|attn.pos_w", "places", "head_dim")
    feed_forward_norm: LayerNorm = weight("norm2|post_ln", "hidden_size")
    up: Linear = weight("mlp.lin1", "feed_forward_size", "hidden_size")
    down: Linear = weight("mlp.lin2", "hidden_size", "feed_forward_size")

    def loaded(self) -> None:
        self._tables = [self.ops.numpy(table.values) for table in (self.rows, self.columns)]

    def forward(
        self, hidden: Array, side: int, slice_rows: int, keys_of: dict[int, PatchKeys]
    ) -> Slices[Array]:
        """Map a grid of patches [side * side, hidden] to the same shape; `keys_of` windows are shared."""
        o = self.options
        window = o.window or side
        order, back = windows(side, window)
        normed = [self.attention_norm(hidden[begin:end]) for begin, end in pieces(len(hidden), slice_rows)]
        rim = self.ops.array(np.zeros((1, o.hidden_size), np.float32))
        shown = self.ops.concatenate([*normed, rim])[self.ops.array(order)]
        yield
        # Relative positions enter the scores as extra key dimensions that one-hot encode places.
        width = o.head_dim + 2 * window
        row, column = np.divmod(np.arange(len(order)) % window**2, window)
        said = np.concatenate([np.eye(window)[row], np.eye(window)[column]], axis=1).astype(np.float32)
        scores = [self._distances(table, window) for table in self._tables]
        keys, queries = keys_of.setdefault(window, PatchKeys(self.ops, o.heads, width, o.head_dim)), []
        keys.reserve(len(order))
        for begin, end in pieces(len(order), slice_rows):
            query, key, value = (each.reshape(-1, o.head_dim) for each in self.inputs(shown[begin:end]))
            found = [
                self._at_places(query, places[begin:end], score)
                for places, score in zip((row, column), scores, strict=True)
            ]
            queries.append(self.ops.join([query, *found]).reshape(-1, o.heads, width))
            told = self.ops.array(said[begin:end].repeat(o.heads, axis=0))
            keys.put(
                begin,
                self.ops.join([key, told]).reshape(-1, o.heads, width),
                value.reshape(-1, o.heads, o.head_dim),
            )
            yield
        groups = Groups.of(self.ops, [window**2] * (len(order) // window**2))
        attended = []
        for (begin, _), query in zip(pieces(len(order), slice_rows), queries, strict=True):
            attended.append(self.output(keys.attend(query, begin, groups, o.head_dim**-0.5)))
            yield
        attended_rows = self.ops.concatenate(attended)[self.ops.array(back)]
        results = []
        for begin, end in pieces(len(hidden), slice_rows):
            part, normed_part = self.feed_forward_norm.after_adding(
                attended_rows[begin:end], hidden[begin:end]
            )
            results.append(part + self.down(self.ops.gelu(self.up(normed_part))))
            yield
        return self.ops.concatenate(results)

    def _distances(self, table: NDArray[np.float32], side: int) -> list[Weight]:
        """Return, for each query place along a side, the weights that score all key places."""
        resized = (
            resized_row(table, 2 * side - 1) * self.options.head_dim**0.5
        )  # undoes the scaling of scores
        weights = []
        for place in range(side):
            distances = place - np.arange(side) + side - 1
            weights.append(
                Weight.from_values("distances", np.ascontiguousarray(resized[distances], np.float32))
            )
            self.ops.pack(weights[-1])
        return weights

    def _at_places(self, queries: Array, places: NDArray[np.int64], weights: Sequence[Weight]) -> Array:
        """Multiply queries [rows * heads, head_dim] by the weights of their row's place."""
        each = places.repeat(self.options.heads)
        order = np.argsort(each, kind="stable")
        sorted_queries, begin, found = queries[self.ops.array(order)], 0, []
        for place, count in zip(*np.unique(each, return_counts=True), strict=True):
            found.append(self.ops.linear(sorted_queries[begin : begin + count], weights[place]))
            begin += count
        back: Array = self.ops.concatenate(found)[self.ops.array(np.argsort(order))]
        return back


class Sam(Module):
    options: SamOptions
    embedding: PatchEmbedding = weight("patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    positions: Table = weight("position_embd|pos_embd", "side", "side", "hidden_size")
    layers: Sequence[SamLayer] = blocks("blk")
    first: PatchEmbedding = weight("neck.0", "neck_size", "hidden_size", 1, 1)
    first_norm: LayerNorm = weight("neck.1", "neck_size")
    second: Convolution = weight("neck.2", "neck_size", "neck_size", _KERNEL, _KERNEL)
    second_norm: LayerNorm = weight("neck.3", "neck_size")
    third: Convolution = weight("net_2", "middle_size", "neck_size", _KERNEL, _KERNEL)
    fourth: Convolution = weight("net_3", "out_size", "middle_size", _KERNEL, _KERNEL)

    def loaded(self) -> None:
        self._table = self.ops.numpy(self.positions.values)

    def forward(self, patches: Array, slice_rows: int) -> Slices[Array]:
        """Map a square of patches [side * side, pixels] to [(side / 4)², out]."""
        side = round(len(patches) ** 0.5)
        hidden = self.embedding(patches)
        hidden = hidden + self.ops.array(resized_positions(self._table, side, side, cubic=True))
        yield
        keys_of: dict[int, PatchKeys] = {}
        try:
            for layer in self.layers:
                hidden = yield from layer.forward(hidden, side, slice_rows, keys_of)
        finally:
            for keys in keys_of.values():
                keys.release()
        hidden = self.first_norm(self.first(hidden))
        yield
        for convolution, step in ((self.second, 1), (self.third, 2), (self.fourth, 2)):
            parts = []
            for part in convolution.parts(rimmed(self.ops, [hidden]), side, step, slice_rows, rim=1):
                parts.append(self.second_norm(part) if convolution is self.second else part)
                yield
            hidden, side = self.ops.concatenate(parts), results(side, step)
        return hidden


def windows(side: int, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of a square's patches window by window, and the inverse.

    Windows that reach beyond the square read index `side²` there.
    """
    whole = -(-side // window) * window
    numbers = np.full((whole, whole), side**2)
    numbers[:side, :side] = np.arange(side**2).reshape(side, side)
    count = whole // window
    order = numbers.reshape(count, window, count, window).swapaxes(1, 2).reshape(-1)
    return order, np.argsort(order, kind="stable")[: side**2]
