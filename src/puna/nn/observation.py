"""Observation of attention: what some heads of a decoder attend to in what its encoder read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from puna.kvcache.cache import KVView
from puna.ops import Array, Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class HeadAttention:
    """Queries and keys of one head, from which the weights of its attention follow."""

    queries: NDArray[np.float32]  # [inputs, head_dim]
    keys: NDArray[np.float32]  # [states, head_dim]
    scale: float

    def weights(self) -> NDArray[np.float32]:
        """Return the weight of each state for each input: [inputs, states], 1 in total for each input."""
        scores = self.queries @ self.keys.T * np.float32(self.scale)
        scores -= scores.max(1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(1, keepdims=True)
        return scores


class AttentionObservation:
    """Queries and keys of chosen heads at `inputs` inputs of a sequence, from input `first` on.

    Passes may bring the inputs in parts, and again after one that failed. All must see the same states.
    """

    def __init__(self, heads: Sequence[tuple[int, int]], first: int, inputs: int) -> None:
        """`heads` are pairs of a layer and the number of a head in it."""
        self.first = first
        self._inputs = inputs
        self._heads: dict[int, list[int]] = defaultdict(list)  # by layer
        for layer, head in heads:
            self._heads[layer].append(head)
        self._queries: dict[int, NDArray[np.float32]] = {}  # by layer: [inputs, heads, head_dim]
        self._keys: dict[int, NDArray[np.float32]] = {}  # by layer: [heads, states, head_dim]
        self._scale = 1.0

    def take(self, layer: int, position: int, query: Array, seen: KVView, scale: float, ops: Backend) -> None:
        """Note a layer's `query` [rows, heads, head_dim] for inputs from `position` on, and the keys."""
        if layer not in self._heads:
            return
        heads = self._heads[layer]
        found = ops.numpy(seen.as_keys(ops, query))
        if layer not in self._queries:
            self._queries[layer] = np.zeros((self._inputs, len(heads), found.shape[2]), np.float32)
        begin = position - self.first
        self._queries[layer][begin : begin + len(found)] = found[:, heads]
        self._scale = scale
        if begin + len(found) == self._inputs:  # all rows have the same keys
            start, count = (int(ops.numpy(each)[-1]) for each in (seen.starts, seen.counts))
            keys = ops.numpy(seen.keys.numbers(ops.numpy(seen.cells)[start : start + count]))
            group = found.shape[1] // keys.shape[1]
            self._keys[layer] = np.stack([keys[:, head // group] for head in heads])

    def found(self) -> Iterator[HeadAttention]:
        """Yield the attention of each head, by layer."""
        for layer, keys in sorted(self._keys.items()):
            for number in range(len(keys)):
                yield HeadAttention(self._queries[layer][:, number], keys[number], self._scale)
