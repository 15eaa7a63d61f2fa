"""Sparse attention: each position attends to the positions that an indexer scores highest for it.

DeepSeek-AI, arXiv:2512.02556, section 2.1. Positive scales of its scores are left out, as the choice does
not depend on them, and so is its Hadamard transform, which leaves products of queries and keys as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache, IndexedLayerCache, KVView, LayerCache, LayerState
from puna.nn.latent_attention import LatentAttention, LatentAttentionOptions
from puna.nn.layers import LayerNorm, Linear, Unused, Values, linear_many
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
        query = seen.as_keys(ops, query)
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


class GroupIndexerOptions(Protocol):
    """Layer options that an indexer of groups reads."""

    @property
    def indexer_heads(self) -> int: ...
    @property
    def indexer_dim(self) -> int: ...
    @property
    def group_size(self) -> int:
        """Positions of a group."""

    @property
    def most_chosen(self) -> int:
        """Positions in the groups that are chosen."""

    @property
    def key_norm_eps(self) -> float: ...


class GroupIndexer(Module):
    """Scores of groups of consecutive positions, by means of their keys that gates weigh (GLM 5.3 Flash).

    A group can be chosen once its last position is there, whose cell holds the group's key. Other cells hold
    means over as many positions, which are never read. Nothing is rotated.
    """

    options: GroupIndexerOptions
    query: Linear = weight("indexer.attn_q_b", "indexer_size", "query_rank")
    key: Linear = weight("indexer.attn_k", "indexer_dim", "hidden_size")
    key_norm: LayerNorm = weight("indexer.k_norm", "indexer_dim")
    head_weights: Linear = weight("indexer.proj", "indexer_heads", "hidden_size")
    gate: Linear = weight("indexer_compressor_gate", "indexer_dim", "hidden_size")
    gate_bias: Values = weight("indexer_compressor_ape", "group_size", "indexer_dim")

    def loaded(self) -> None:
        self.key_norm.eps = self.options.key_norm_eps

    def choose(self, kept: LayerCache, state: LayerState, hidden: Array, vector: Array) -> Choice:
        """Store the keys of the groups that `hidden` [rows, hidden] ends, and choose by `vector`'s queries.

        The `state` "group" holds keys and gates of the positions before.
        """
        o, ops, count, slots = self.options, self.ops, len(hidden), state.slots
        key, gate, weights = linear_many(hidden, self.key, self.gate, self.head_weights)
        pooled = ops.pool_recent(
            self.key_norm(key), gate, self.gate_bias.values, state.states["group"],
            slots.starts, slots.sources, slots.targets,
        )  # fmt: skip
        kept.put(pooled.reshape(count, 1, o.indexer_dim), None)
        query = self.query(vector).reshape(count, o.indexer_heads, o.indexer_dim)
        seen = kept.view()
        query = seen.as_keys(ops, query)
        return ops.choose_cells(
            query, weights, seen.keys, seen.cells, seen.starts, seen.counts, o.most_chosen, o.group_size
        )


def group_state(group_size: int, indexer_dim: int) -> tuple[str, tuple[int, ...]]:
    """Return the name and shape of the state of `GroupIndexer`."""
    return "group", (group_size - 1, 2 * indexer_dim)


class IndexedAttention(LatentAttention):
    """Latent attention to the positions that the layer's indexer chooses."""

    options: SparseAttentionOptions
    indexer: Indexer = part("indexer")

    def choose(
        self, cache: Cache, hidden: Array, vector: Array, batch: BatchArrays, rope: Rope | None
    ) -> KVView:
        kept = cache.layer(self.index)
        assert isinstance(kept, IndexedLayerCache), "the cache has no keys of the indexer"
        choice = self.indexer.choose(kept.indexer, hidden, vector, batch.positions, rope)
        return _chosen(self.index, batch, kept, choice)


class GroupIndexedAttention(LatentAttention):
    """Latent attention to the groups of positions that the layer's indexer chooses, and those after them."""

    indexer: GroupIndexer = part()

    def choose(
        self, cache: Cache, hidden: Array, vector: Array, batch: BatchArrays, rope: Rope | None
    ) -> KVView:
        kept = cache.layer(self.index)
        assert isinstance(kept, IndexedLayerCache), "the cache has no keys of the indexer"
        choice = self.indexer.choose(kept.indexer, cache.state(self.index), hidden, vector)
        return _chosen(self.index, batch, kept, choice)


class BorrowingIndexedAttention(LatentAttention):
    """Latent attention to the positions that another layer's indexer chose (arXiv:2603.12201)."""

    options: SparseAttentionOptions
    indexer: UnusedIndexer = part("indexer")

    def choose(
        self, cache: Cache, hidden: Array, vector: Array, batch: BatchArrays, rope: Rope | None
    ) -> KVView:
        return narrowed(cache.layer(self.index).view(), batch.choices[self.options.lender])


class BorrowingFromGroups(BorrowingIndexedAttention):
    """Latent attention to the groups of positions that another layer's indexer chose."""

    gate: Unused | None = weight("indexer_compressor_gate", "indexer_dim", "hidden_size", optional=True)
    gate_bias: Unused | None = weight("indexer_compressor_ape", "group_size", "indexer_dim", optional=True)


def _chosen(layer: int, batch: BatchArrays, kept: LayerCache, choice: Choice) -> KVView:
    """Return the view of what `layer` chose, and keep its choice for later layers."""
    batch.choices.clear()  # they use only the latest, and the others take memory
    batch.choices[layer] = choice
    return narrowed(kept.view(), choice)


def narrowed(seen: KVView, choice: Choice) -> KVView:
    """Return the view of only the chosen cells."""
    cells, starts, counts = choice
    return replace(seen, cells=cells, starts=starts, counts=counts)
