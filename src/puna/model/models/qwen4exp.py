"""Qwen 3.8 Flash Next: Qwen 3.5's layers on a residual of several streams, with sparse attention and n-grams.

Qwen Team, "Qwen3.8-Flash-Next", 2026, whose reference is transformers' `qwen4_exp`. Attention reads the
blocks of positions that an indexer scores highest, and those after the last whole block. One of the delta
networks' layers adds embeddings of n-grams. Heads that predict further tokens are not loaded: no reference
computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

import numpy as np

from puna.batch import BatchArrays
from puna.gguf.metadata import (
    check_extent,
    invalid,
    missing,
    per_layer,
    required,
    scalar,
    table_rows,
    whole_numbers,
)
from puna.kvcache.cache import Cache, IndexedLayerCache, KVView, LayerCache, LayerState
from puna.kvcache.storage import KVShape
from puna.model.indexers import check_indexer, check_rotated, read_indexer, within_context
from puna.model.layer_cache import Everything, State, StateAnd
from puna.model.models.qwen3next import HybridLayerOptions, Qwen3Next
from puna.model.options import LayerOptions, TextOptions
from puna.model.streams import StreamsDecoder, StreamsOptions, read_streams
from puna.nn.attention import GatedSelfAttention
from puna.nn.convolution import RecentRows
from puna.nn.experts import GatedSharedAndRouted
from puna.nn.hyper_connections import GatedFeedForwardConnection, GatedMixerConnection, OutputStreamMean
from puna.nn.indexer import Choice, narrowed
from puna.nn.layers import Linear, RMSNorm, Unused, fixed_linear, linear_many
from puna.nn.linear_attention import GatedDeltaNetwork
from puna.nn.module import Module, blocks, part, weight
from puna.nn.ngrams import NgramInput, Ngrams
from puna.ops import Array, Rope
from puna.ops.backend import list_width

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: More than any model has of positions in a block, tokens in an n-gram, heads of n-grams, and taps.
_MOST: Final = 1 << 12
#: Tokens in states are below this (`Backend.ngram_rows`).
_MAX_VOCABULARY: Final = 1 << 24
_LARGEST_PRODUCT: Final = 2**63 - 1
#: Names of an indexer's states: keys, and the rotations of their positions.
_KEYS, _TURNS = "indexer.keys", "indexer.turns"


@dataclass(frozen=True, kw_only=True)
class Qwen4ExpLayerOptions(HybridLayerOptions):
    streams: int
    stream_rank: int
    indexer_heads: int
    indexer_dim: int
    block_size: int  # positions; 0: all are attended to
    most_chosen: int  # positions in whole blocks that a position attends to
    ngrams: Ngrams | None

    @property
    def streams_size(self) -> int:
        return self.streams * self.hidden_size

    @property
    def indexer_size(self) -> int:
        return self.indexer_heads * self.indexer_dim

    @property
    def pooled_rows(self) -> int:
        """Rows that a sum over a block reads: at least two, since a state cannot be empty."""
        return max(self.block_size, 2)

    @property
    def ngram_rows(self) -> int:
        return 0 if self.ngrams is None else self.ngrams.table_rows

    @property
    def ngram_row_size(self) -> int:
        return 0 if self.ngrams is None else self.ngrams.row_size

    @property
    def ngram_width(self) -> int:
        return 0 if self.ngrams is None else self.ngrams.width

    @property
    def ngram_taps(self) -> int:
        return 0 if self.ngrams is None else self.ngrams.taps

    @property
    def ngram_longest(self) -> int:
        return 0 if self.ngrams is None else self.ngrams.longest

    @property
    def indexer_states(self) -> State:
        assert self.rope is not None
        before = self.pooled_rows - 1
        return State(((_KEYS, (before, self.indexer_dim)), (_TURNS, (before, self.rope.dims))))

    @property
    def mixing_values(self) -> int:
        # The streams, side by side, their norm and gates; queries of the indexer, and lists of chosen cells.
        lists = list_width(self.most_chosen + self.block_size - 1) if self.block_size else 0
        return super().mixing_values + 6 * self.streams_size + self.indexer_size + lists

    @property
    def kv_shape(self) -> KVShape:
        return replace(super().kv_shape, indexer_dim=self.indexer_dim if self.block_size else 0)


@dataclass(frozen=True, kw_only=True)
class Qwen4ExpOptions(StreamsOptions):
    stream_rank: int

    @property
    def streams_size(self) -> int:
        return self.streams * self.hidden_size


class PooledIndexer(Module):
    """Scores of blocks of positions by a few heads, which share one key per block.

    The key is made from the mean of the block's keys, and rotated to its first position. Every position
    keeps the key of the block that would end there, so that a block's key is that of its last position.
    """

    options: Qwen4ExpLayerOptions
    query: Linear = weight("q_proj", "indexer_size", "hidden_size")
    key: Linear = weight("k_proj", "indexer_dim", "hidden_size")
    query_norm: RMSNorm = weight("q_norm", "indexer_dim")
    key_norm: RMSNorm = weight("k_norm", "indexer_dim")

    def loaded(self) -> None:
        o, ops = self.options, self.ops
        assert o.rope is not None
        assert o.rope.neox
        dim, rotated, pairs, rows = o.indexer_dim, o.rope.dims, o.rope.pairs, o.pooled_rows
        earlier = rows - o.block_size  # than the block
        self.mean = RecentRows(ops, dim, [0.0] * earlier + [1 / o.block_size] * o.block_size)
        self.of_first = RecentRows(ops, rotated, [float(row == earlier) for row in range(rows)])
        # Pairs (1, 0), which positions rotate to their cosines and sines; and a weight of 1 for each head.
        self.upright = fixed_linear(ops, np.zeros((rotated, dim)), np.arange(rotated) < pairs)
        self.head_weights = fixed_linear(ops, np.zeros((o.indexer_heads, dim)), np.ones(o.indexer_heads))
        # A key is rotated by key * cosines + other halves of its pairs * sines.
        place = np.arange(dim)
        first, second = place < pairs, (place >= pairs) & (place < rotated)
        cosines, sines = np.zeros((2, dim, rotated))
        cosines[place[first | second], place[first | second] % pairs] = 1
        sines[place[first], place[first] + pairs] = -1
        sines[place[second], place[second]] = 1
        others = np.where(first, place + pairs, place - pairs)
        self.cosines, self.sines = fixed_linear(ops, cosines, place >= rotated), fixed_linear(ops, sines)
        self.other_halves = fixed_linear(ops, np.eye(dim)[others] * (first | second)[:, None])

    def choose(
        self, kept: LayerCache, hidden: Array, positions: Array, state: LayerState, rope: Rope
    ) -> Choice:
        """Store the keys of `hidden` [rows, hidden], and choose cells by its queries."""
        o, ops, count = self.options, self.ops, len(hidden)
        query, key = linear_many(hidden, self.query, self.key)
        query = self.query_norm(query.reshape(count, o.indexer_heads, o.indexer_dim))
        ops.rope_(query, positions, rope)
        pooled = self.key_norm(self.mean(key, state, _KEYS))
        kept.put(self.rotated(pooled, positions, state, rope).reshape(count, 1, o.indexer_dim), None)
        seen = kept.view()
        query = seen.as_keys(ops, query)
        return ops.choose_cells(
            query, self.head_weights(key), seen.keys, seen.cells, seen.starts, seen.counts, o.most_chosen,
            o.block_size,
        )  # fmt: skip

    def rotated(self, pooled: Array, positions: Array, state: LayerState, rope: Rope) -> Array:
        """Return `pooled` keys [rows, dim] rotated to the position of the first row of their block."""
        turns = self.upright(pooled)
        self.ops.rope_(turns.reshape(len(turns), 1, -1), positions, rope)
        cosines, sines = linear_many(self.of_first(turns, state, _TURNS), self.cosines, self.sines)
        turned: Array = pooled * cosines + self.other_halves(pooled) * sines
        return turned


class PooledAttention(GatedSelfAttention):
    """Gated self-attention to the blocks of positions that the layer's indexer chooses."""

    options: Qwen4ExpLayerOptions
    indexer: PooledIndexer = part("indexer")

    def choose(
        self, kept: LayerCache, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None
    ) -> KVView:
        assert isinstance(kept, IndexedLayerCache), "the cache has no keys of the indexer"
        assert rope is not None
        state = cache.state(self.index)
        choice = self.indexer.choose(kept.indexer, hidden, batch.positions, state, rope)
        return narrowed(kept.view(), choice)


class UnusedPooledIndexer(Module):
    """Tensors of an indexer in files whose layer attends to all positions."""

    query: Unused | None = weight("q_proj", "indexer_size", "hidden_size", optional=True)
    key: Unused | None = weight("k_proj", "indexer_dim", "hidden_size", optional=True)
    query_norm: Unused | None = weight("q_norm", "indexer_dim", optional=True)
    key_norm: Unused | None = weight("k_norm", "indexer_dim", optional=True)


class UnchoosingAttention(GatedSelfAttention):
    """Gated self-attention to all positions, in layers whose blocks have size 0 in the file."""

    indexer: UnusedPooledIndexer = part("indexer")


class SigmoidDeltaNetwork(GatedDeltaNetwork):
    """Gated delta network whose gates are sigmoids."""

    def gated(self, mixed: Array, gate: Array) -> Array:
        return self.ops.sigmoid_gate(mixed, gate)


def mixer_kind(options: Qwen4ExpLayerOptions) -> type[GatedSelfAttention | SigmoidDeltaNetwork]:
    if not options.kv_heads:
        return SigmoidDeltaNetwork
    return PooledAttention if options.block_size else UnchoosingAttention


def ngram_kind(options: Qwen4ExpLayerOptions) -> type[NgramInput] | None:
    return None if options.ngrams is None else NgramInput


class Layer(Module):
    ngrams: NgramInput | None = part(choose=ngram_kind)
    mixer_connection: GatedMixerConnection = part()
    mixer: GatedSelfAttention | SigmoidDeltaNetwork = part(choose=mixer_kind)
    feed_forward_connection: GatedFeedForwardConnection = part()
    feed_forward: GatedSharedAndRouted = part()

    def forward(
        self, streams: list[Array], batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> list[Array]:
        """Map streams [rows, hidden] to the same, or to their rows `rows` (int64)."""
        if self.ngrams is not None:
            streams = self.ngrams.forward(streams, batch, cache)
        hidden, mixture = self.mixer_connection.read(streams)
        mixed = self.mixer.forward(hidden, batch, cache, rope, rows)
        if rows is not None:
            streams, mixture = [each[rows] for each in streams], mixture[rows]
        streams = self.mixer_connection.add(streams, mixed, mixture)
        hidden, mixture = self.feed_forward_connection.read(streams)
        return self.feed_forward_connection.add(streams, self.feed_forward.forward(hidden), mixture)


class Qwen4Exp(StreamsDecoder, Qwen3Next):
    undivided: ClassVar[str] = "the table of its n-grams would have to be where their layer is"

    options: Qwen4ExpOptions
    layers: Sequence[Layer] = blocks("blk")  # type: ignore[assignment]
    output_norm: OutputStreamMean = part()  # type: ignore[assignment]

    def finish(self, carried: list[Array], batch: BatchArrays) -> Array:
        return super().finish([self.ops.join(carried)], batch)

    @classmethod
    def read_options(cls, file: GGUFFile) -> Qwen4ExpOptions:
        options = super().read_options(file).without_heads()
        streams, rank = read_streams(file), required(file, "hyper_connection.low_rank")
        heads, dim = read_indexer(file)
        check_rotated(file, required(file, "rope.dimension_count"), dim)
        sizes = per_layer(file, "attention.compress_ratios", required(file, "block_count"))
        wide = {"hyper_connection.count": streams, "embedding_length": options.hidden_size}
        check_extent(file, "output_hc_norm.weight", 0, wide)
        ngrams = _read_ngrams(file, options)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            assert isinstance(layer, HybridLayerOptions)
            values = vars(layer)
            if not layer.experts:
                raise missing(file, "expert_count")
            size = sizes[index] if layer.kv_heads else 0
            if size > _MOST:
                complaint = f"is {size} for layer {index}, more than the {_MOST} positions of a block"
                raise invalid(file, "attention.compress_ratios", complaint)
            changed = Qwen4ExpLayerOptions(
                **values, streams=streams, stream_rank=rank, indexer_heads=heads, indexer_dim=dim,
                block_size=size, most_chosen=_most_chosen(file, size) if size else 0,
                ngrams=ngrams.get(index),
            )  # fmt: skip
            if size:
                check_indexer(file, index, heads, dim, query="indexer.q_proj")
                return replace(changed, remembers=StateAnd(changed.indexer_states, Everything()))
            if changed.ngrams is not None:
                assert isinstance(layer.remembers, State)
                arrays = changed.ngrams.states(changed.streams_size)
                return replace(changed, remembers=State((*layer.remembers.arrays, *arrays)))
            return changed

        return Qwen4ExpOptions(**vars(options.each(own)), streams=streams, stream_rank=rank)


def _most_chosen(file: GGUFFile, block_size: int) -> int:
    """Return how many positions in whole blocks a position attends to."""
    key = "attention.indexer.top_k"
    most = required(file, key)
    if most % block_size:
        raise invalid(file, key, f"is {most}, which is not a whole number of blocks of {block_size}")
    return within_context(file, most, block_size)


def _read_ngrams(file: GGUFFile, options: TextOptions) -> dict[int, Ngrams]:
    """Return the n-grams by the number of their layer. Raises `ModelError`."""
    if file.get("ple.layers") is None:
        return {}
    layers = whole_numbers(file, "ple.layers", 1)
    longest = _bounded(file, "ple.ngram_size", 2)
    heads = (longest - 1) * _bounded(file, "ple.heads_per_ngram", 1)
    row_size, taps = required(file, "embedding_length_per_layer_input"), _bounded(file, "ple.conv_kernel", 1)
    layer = layers[0]
    check_extent(file, f"blk.{layer}.ple_conv1d.weight", 1, {"ple.conv_kernel": taps})
    if layer >= options.block_count or options.layers[layer].kv_heads:
        raise invalid(file, "ple.layers", f"has {layer}, which is not a layer with a delta network")
    if file.get("ple.eos_token_id") is None:
        raise missing(file, "ple.eos_token_id")
    boundary = scalar(file, "ple.eos_token_id", 0)
    image = scalar(file, "ple.image_token_id", boundary)
    tokens = boundary, image, options.vocab_size - 1
    if not 0 <= min(boundary, image) <= max(tokens) < _MAX_VOCABULARY:
        complaint = f"is {boundary}; that, {image} for images and all tokens must be below {_MAX_VOCABULARY}"
        raise invalid(file, "ple.eos_token_id", complaint)
    multipliers = whole_numbers(file, "ple.layer_multipliers", longest)
    if max(multipliers) * max(tokens) > _LARGEST_PRODUCT:
        complaint = f"has {max(multipliers)}, whose products with tokens are too large"
        raise invalid(file, "ple.layer_multipliers", complaint)
    sizes = whole_numbers(file, "ple.head_vocab_sizes", heads)
    offsets = whole_numbers(file, "ple.head_offsets", heads)
    rows = table_rows(file, "per_layer_token_embd.weight")
    for size, offset in zip(sizes, offsets, strict=True):
        if size < 1 or offset + size > min(rows, 2**31 - 1):
            complaint = f"has {size} from row {offset} on, of a table with {rows}"
            raise invalid(file, "ple.head_vocab_sizes", complaint)
    return {layer: Ngrams(rows, row_size, multipliers, sizes, offsets, boundary, image, taps)}


def _bounded(file: GGUFFile, key: str, least: int) -> int:
    found = required(file, key)
    if not least <= found <= _MOST:
        raise invalid(file, key, f"should be from {least} to {_MOST}, but is {found}")
    return found
