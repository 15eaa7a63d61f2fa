"""Sparse attention: each position attends to the positions that an indexer scores highest for it.

DeepSeek-AI, arXiv:2512.02556, section 2.1. Positive scales of its scores are left out, as the choice does
not depend on them, and so is its Hadamard transform, which leaves products of queries and keys as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from puna.batch import BatchArrays
from puna.kvcache.cache import IndexedLayerCache, KVView, LayerCache
from puna.nn.latent_attention import LatentAttention, LatentAttentionOptions
from puna.nn.layers import LayerNorm, Linear, Unused, linear_many
from puna.nn.module import Module, WeightSource, part, weight
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Epsilon of the norm of keys, independent of the layer's.
_NORM_EPS = 1e-6

#: Lists of chosen cells: cells, and each row's start and count (see `Backend.choose_cells`).
Choice = tuple[Array, Array, Array]


class IndexerOptions(Protocol):
    """Layer options that an indexer reads."""

    @property
    def indexer_heads(self) -> int: ...
    @property
    def indexer_dim(self) -> int: ...
    @property
    def indexer_halves(self) -> bool:
        """Whether rotated pairs of the file's rows are half of the rotated part apart, not neighbours."""

    @property
    def indexer_rotates_end(self) -> bool:
        """Whether the rotated rows of a head are the last ones in the file, not the first."""

    @property
    def rope_dim(self) -> int: ...
    @property
    def most_chosen(self) -> int: ...


class SparseAttentionOptions(IndexerOptions, LatentAttentionOptions, Protocol):
    """Layer options of latent attention to chosen positions."""

    @property
    def lender(self) -> int:
        """Number of the layer whose choice is used."""


def rows_as_rotated(heads: int, options: IndexerOptions) -> NDArray[np.intp] | None:
    """Return the order of rows [heads * dim] by which each head begins with its rotated pairs.

    None: the file has that order.
    """
    if not (options.indexer_halves or options.indexer_rotates_end):
        return None
    dim, rotated = options.indexer_dim, options.rope_dim
    begin = dim - rotated if options.indexer_rotates_end else 0
    pairs, every = np.arange(begin, begin + rotated), np.arange(dim)
    if options.indexer_halves:
        pairs = pairs.reshape(2, -1).T.reshape(-1)
    order = np.concatenate([pairs, every[:begin], every[begin + rotated :]])
    rows: NDArray[np.intp] = (np.arange(heads)[:, None] * dim + order).reshape(-1)
    return rows


class HeadsLinear(Linear):
    """Linear to the queries or keys of an indexer, each beginning with its rotated pairs.

    The shape is [heads, dim, columns].
    """

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: IndexerOptions
    ) -> Self | None:
        heads, dim, columns = shape
        found = source.matrix(f"{name}.weight", (heads * dim, columns))
        if found is None:
            return None
        if (rows := rows_as_rotated(heads, options)) is None:
            source.ops.pack(found)
            return cls(source.ops, found)
        chosen = found.chosen_rows(rows)
        found.drop_data()
        source.ops.pack(chosen)
        return cls(source.ops, chosen, rows=rows)


class Indexer(Module):
    """Scores of positions by a few small heads that share one key per position."""

    options: IndexerOptions
    query: HeadsLinear = weight("attn_q_b", "indexer_heads", "indexer_dim", "query_rank")
    key: HeadsLinear = weight("attn_k", 1, "indexer_dim", "hidden_size")
    key_norm: LayerNorm = weight("k_norm", "indexer_dim")
    head_weights: Linear = weight("proj", "indexer_heads", "hidden_size")

    def loaded(self) -> None:
        o, norm = self.options, self.key_norm
        norm.eps = _NORM_EPS
        if (rows := rows_as_rotated(1, o)) is not None:
            order = self.ops.array(rows)
            norm.weight = norm.weight[order]
            norm.bias = None if norm.bias is None else norm.bias[order]

    def choose(
        self, kept: LayerCache, hidden: Array, vector: Array, positions: Array, rope: Rope | None
    ) -> Choice:
        """Store the keys of `hidden` [rows, hidden], and choose cells by the queries made from `vector`."""
        o, ops, count = self.options, self.ops, len(hidden)
        key, weights = linear_many(hidden, self.key, self.head_weights)
        key = self.key_norm(key).reshape(count, 1, o.indexer_dim)
        query = self.query(vector).reshape(count, o.indexer_heads, o.indexer_dim)
        if rope is not None:
            ops.rope_(query, positions, rope)
            ops.rope_(key, positions, rope)
        kept.put(key, None)
        seen = kept.view()
        if seen.hadamard is not None:
            query = seen.hadamard(ops, query)
        return ops.choose_cells(
            query, weights, seen.keys, seen.cells, seen.starts, seen.counts, o.most_chosen
        )


class UnusedIndexer(Module):
    """Tensors of an indexer in files whose layer uses another layer's choice."""

    query: Unused | None = weight("attn_q_b", "indexer_size", "query_rank", optional=True)
    key: Unused | None = weight("attn_k", "indexer_dim", "hidden_size", optional=True)
    key_norm: Unused | None = weight("k_norm", "indexer_dim", optional=True)
    key_norm_bias: Unused | None = weight("k_norm.bias", "indexer_dim", optional=True)
    head_weights: Unused | None = weight("proj", "indexer_heads", "hidden_size", optional=True)


class IndexedAttention(LatentAttention):
    """Latent attention to the positions that the layer's indexer chooses."""

    options: SparseAttentionOptions
    indexer: Indexer = part("indexer")

    def choose(
        self, kept: LayerCache, hidden: Array, vector: Array, batch: BatchArrays, rope: Rope | None
    ) -> KVView:
        assert isinstance(kept, IndexedLayerCache), "the cache has no keys of the indexer"
        choice = self.indexer.choose(kept.indexer, hidden, vector, batch.positions, rope)
        batch.choices.clear()  # later layers use only the latest, and the others take memory
        batch.choices[self.index] = choice
        return _narrowed(kept.view(), choice)


class BorrowingIndexedAttention(LatentAttention):
    """Latent attention to the positions that another layer's indexer chose (arXiv:2603.12201)."""

    options: SparseAttentionOptions
    indexer: UnusedIndexer = part("indexer")

    def choose(
        self, kept: LayerCache, hidden: Array, vector: Array, batch: BatchArrays, rope: Rope | None
    ) -> KVView:
        return _narrowed(kept.view(), batch.choices[self.options.lender])


def _narrowed(seen: KVView, choice: Choice) -> KVView:
    cells, starts, counts = choice
    return replace(seen, cells=cells, starts=starts, counts=counts)
