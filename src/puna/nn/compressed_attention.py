"""Attention to a window and to compressed entries of all positions before, each made of a group of them.

DeepSeek-AI, "DeepSeek V4", 2026, section 2.3. All heads read one key per position, which is also its value.
So what a head has read is rotated like its keys, and is rotated back by the position of its row.
"""

from __future__ import annotations

from typing import Any, Protocol, Self

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache, KVView, LayerCache
from puna.kvcache.compressed import CompressedLayer
from puna.nn.attention import attend
from puna.nn.indexer import Choice, narrowed
from puna.nn.latent_attention import HeadLinear
from puna.nn.layers import Linear, RMSNorm, Values, linear_many, unit_norm
from puna.nn.module import Module, WeightSource, part, weight
from puna.ops import Array, Rope, Storage


class RotationOptions(Protocol):
    """Options of a rotation."""

    def build(self) -> Rope:
        """Build the rotation of the first values of a head."""


class CompressedAttentionOptions(Protocol):
    """Layer options that attention to a window and entries reads."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def query_size(self) -> int: ...
    @property
    def query_rank(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def attention_scale(self) -> float: ...
    @property
    def rotation(self) -> RotationOptions:
        """Rotation of the last values of queries, keys and entries."""

    @property
    def window(self) -> int:
        """Positions whose keys a position attends to."""

    @property
    def group_size(self) -> int:
        """Positions that make an entry; 0: there are no entries."""

    @property
    def entry_width(self) -> int:
        """Values that a position contributes to entries: of a head, or of two if groups overlap."""

    @property
    def output_groups(self) -> int:
        """Groups of heads that are mapped to the output separately at first."""

    @property
    def output_width(self) -> int:
        """Values that such a group has for each position."""

    @property
    def output_rank(self) -> int: ...
    @property
    def joined_rank(self) -> int:
        """Values of all groups after their own linears."""


class SparseEntriesOptions(CompressedAttentionOptions, Protocol):
    """Layer options of attention to chosen entries."""

    @property
    def indexer_heads(self) -> int: ...
    @property
    def indexer_dim(self) -> int: ...
    @property
    def most_chosen(self) -> int: ...


class GroupedLinear(HeadLinear):
    """A linear for each group of heads, all in one tensor; the shape is [groups, out, in]."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        groups, size, columns = shape
        joined = source.matrix(f"{name}.weight", (groups * size, columns))
        if joined is None:
            return None
        made = cls(source.ops, [joined.row_range(i * size, (i + 1) * size) for i in range(groups)])
        joined.drop_data()
        return made


class Compressor(Module):
    """Entries, each the sum of what the positions of its group contribute, weighed by their gates."""

    options: CompressedAttentionOptions
    values: Linear = weight("attn_compressor_kv", "entry_width", "hidden_size")
    gates: Linear = weight("attn_compressor_gate", "entry_width", "hidden_size")
    gate_bias: Values = weight("attn_compressor_ape", "group_size", "entry_width")  # by place in the group
    norm: RMSNorm = weight("attn_compressor_norm", "head_dim")

    @property
    def dim(self) -> int:
        """The size of an entry."""
        return self.options.head_dim

    def loaded(self) -> None:
        self.rope = self.options.rotation.build().at_end(self.dim)
        self.overlapping = self.options.entry_width > self.options.head_dim

    def inputs(self, hidden: Array) -> Array:
        """Return values and gates of `hidden` [rows, hidden]: [rows, 1, 2 * width]."""
        found = self.ops.join(linear_many(hidden, self.values, self.gates))
        inputs: Array = found.reshape(len(hidden), 1, -1)
        return inputs

    def entries(self, inputs: Storage, seen: KVView, places: Array) -> Array:
        """Return each row's entry [rows, 1, dim]: of its group of `inputs`, which begins at its place."""
        pooled = self.ops.pool_groups(
            inputs, seen.cells, seen.starts, seen.counts, self.gate_bias.values, overlapping=self.overlapping
        )
        entries: Array = self.norm(pooled).reshape(len(pooled), 1, self.dim)
        self.ops.rope_(entries, places, self.rope)
        return entries


class IndexerCompressor(Compressor):
    """Keys of entries, by which they are chosen."""

    options: SparseEntriesOptions
    values: Linear = weight("indexer_compressor_kv", "indexer_width", "hidden_size")
    gates: Linear = weight("indexer_compressor_gate", "indexer_width", "hidden_size")
    gate_bias: Values = weight("indexer_compressor_ape", "group_size", "indexer_width")
    norm: RMSNorm = weight("indexer_compressor_norm", "indexer_dim")

    @property
    def dim(self) -> int:
        return self.options.indexer_dim


class EntryIndexer(Module):
    """Scores of entries by a few small heads that share one key per entry, as in `nn/indexer.py`."""

    options: SparseEntriesOptions
    query: Linear = weight("indexer.attn_q_b", "indexer_size", "query_rank")
    head_weights: Linear = weight("indexer.proj", "indexer_heads", "hidden_size")
    compressor: IndexerCompressor = part()

    def choose(self, seen: KVView, hidden: Array, vector: Array, positions: Array) -> Choice:
        """Choose entries for each row of `hidden` [rows, hidden] by the queries made from `vector`."""
        o, ops = self.options, self.ops
        query = self.query(vector).reshape(len(hidden), o.indexer_heads, o.indexer_dim)
        ops.rope_(query, positions, self.compressor.rope)
        query = seen.as_keys(ops, query)
        weights = self.head_weights(hidden)
        return ops.choose_cells(
            query, weights, seen.keys, seen.cells, seen.starts, seen.counts, o.most_chosen
        )


class SharedKeyAttention(Module):
    """Attention to the keys of a window, which all heads share."""

    options: CompressedAttentionOptions
    sinks: Array = weight("attn_sinks", "heads")
    shared_query: Linear = weight("attn_q_a", "query_rank", "hidden_size")
    shared_query_norm: RMSNorm = weight("attn_q_a_norm", "query_rank")
    query: Linear = weight("attn_q_b", "query_size", "query_rank")
    key: Linear = weight("attn_kv", "head_dim", "hidden_size")
    key_norm: RMSNorm = weight("attn_kv_a_norm", "head_dim")
    group_output: GroupedLinear = weight("attn_output_a", "output_groups", "output_rank", "output_width")
    output: Linear = weight("attn_output_b", "hidden_size", "joined_rank")

    def loaded(self) -> None:
        o = self.options
        self.query_norm = unit_norm(self.ops, o.head_dim, o.norm_eps)
        self.rope = o.rotation.build().at_end(o.head_dim)
        self.rope_back = self.rope.backwards()

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        o, ops, count, positions = self.options, self.ops, len(hidden), batch.positions
        shared, key = linear_many(hidden, self.shared_query, self.key)
        vector = self.shared_query_norm(shared)
        query = self.query_norm(self.query(vector).reshape(count, o.heads, o.head_dim))
        key = self.key_norm(key).reshape(count, 1, o.head_dim)
        ops.rope_(query, positions, self.rope)
        ops.rope_(key, positions, self.rope)
        seen = self.remember(cache.layer(self.index), key, hidden, vector, positions)
        mixed = attend(ops, query, seen, o.attention_scale, sinks=self.sinks)
        if rows is not None:
            mixed, positions = mixed[rows], positions[rows]
        mixed = mixed.reshape(len(mixed), o.heads, o.head_dim)
        ops.rope_(mixed, positions, self.rope_back)
        low = self.group_output(mixed.reshape(len(mixed), o.output_groups, o.output_width))
        return self.output(low.reshape(len(mixed), o.joined_rank))

    def remember(
        self, kept: LayerCache, key: Array, hidden: Array, vector: Array, positions: Array
    ) -> KVView:
        """Store the rows' keys, and return the cells that each row attends to.

        `vector` is what queries are made from.
        """
        kept.put(key, None)
        return kept.view()


class HeavilyCompressedAttention(SharedKeyAttention):
    """Attention to a window, and to all entries."""

    compressor: Compressor = part()

    def remember(
        self, kept: LayerCache, key: Array, hidden: Array, vector: Array, positions: Array
    ) -> KVView:
        assert isinstance(kept, CompressedLayer), "the cache has no entries"
        kept.inputs.put(self.compressor.inputs(hidden), None)
        inputs = kept.inputs.view()
        kept.put_entries(self.compressor.entries(inputs.keys, inputs, kept.places), None)
        kept.put(key, None)
        entries = kept.entries()
        return self.beside_window(kept, (entries.cells, entries.starts, entries.counts), kept.most_entries)

    def beside_window(self, kept: CompressedLayer, entries: Choice, most: int) -> KVView:
        """Return the view of lists of at most `most` entries, each followed by its row's window."""
        own = kept.view()
        window = own.cells, own.starts, own.counts
        return narrowed(own, self.ops.join_lists(entries, window, most + self.options.window))


class SparselyCompressedAttention(HeavilyCompressedAttention):
    """Attention to a window, and to the entries that an indexer chooses."""

    options: SparseEntriesOptions
    indexer: EntryIndexer = part()

    def remember(
        self, kept: LayerCache, key: Array, hidden: Array, vector: Array, positions: Array
    ) -> KVView:
        assert isinstance(kept, CompressedLayer), "the cache has no entries"
        indexer = self.indexer.compressor
        kept.inputs.put(self.compressor.inputs(hidden), indexer.inputs(hidden))
        inputs = kept.inputs.view()
        assert isinstance(inputs.values, Storage)
        entries = self.compressor.entries(inputs.keys, inputs, kept.places)
        kept.put_entries(entries, indexer.entries(inputs.values, inputs, kept.places))
        kept.put(key, None)
        chosen = self.indexer.choose(kept.indexer_entries(), hidden, vector, positions)
        return self.beside_window(kept, chosen, self.options.most_chosen)
