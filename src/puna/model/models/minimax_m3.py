"""MiniMax-M3: experts, and attention by each group of heads to the blocks of positions it scores highest.

MiniMax, "MiniMax-M3", 2026, whose reference is transformers' `minimax_m3_vl`. The first layers attend to all
positions and have no experts; the others have both experts and an indexer. Every network is clamped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from puna.batch import BatchArrays
from puna.gguf.metadata import invalid, required, scalar
from puna.kvcache.cache import Cache, IndexedLayerCache, LayerCache
from puna.kvcache.storage import KVShape
from puna.model.decoder import Decoder
from puna.model.indexers import check_indexer, check_rotated, read_indexer, within_context
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.attention import NormedSelfAttention, attend
from puna.nn.experts import MixtureOfExperts, SharedAndRouted, SharedExpert
from puna.nn.feed_forward import FeedForward
from puna.nn.indexer import Choice
from puna.nn.layers import Linear, RMSNorm, linear_many
from puna.nn.module import Module, blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Rope, Routing
from puna.ops.backend import list_width

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class BlockLayerOptions(LayerOptions):
    """Options of a layer that attends to blocks of positions, chosen by a head for each key/value head."""

    indexer_dim: int
    block_size: int  # positions
    most_blocks: int  # that a position attends to
    local_blocks: int  # the last ones among them, its own included

    @property
    def indexer_size(self) -> int:
        return self.kv_heads * self.indexer_dim

    @property
    def mixing_values(self) -> int:
        # Queries of the indexer, lists of chosen cells, and queries and results by head.
        lists = self.kv_heads * list_width(self.block_size * self.most_blocks)
        return super().mixing_values + self.indexer_size + lists + self.query_size + self.mixed_size

    @property
    def kv_shape(self) -> KVShape:
        return replace(super().kv_shape, indexer_dim=self.indexer_dim)


class BlockIndexer(Module):
    """Scores of blocks by one small head for each key/value head, which share one key per position."""

    options: BlockLayerOptions
    query: Linear = weight("q_proj", "indexer_size", "hidden_size")
    key: Linear = weight("k_proj", "indexer_dim", "hidden_size")
    query_norm: RMSNorm = weight("q_norm", "indexer_dim")
    key_norm: RMSNorm = weight("k_norm", "indexer_dim")

    def choose(self, kept: LayerCache, hidden: Array, positions: Array, rope: Rope | None) -> Choice:
        """Store the keys of `hidden` [rows, hidden], and choose cells for each key/value head."""
        o, ops, count = self.options, self.ops, len(hidden)
        query, key = linear_many(hidden, self.query, self.key)
        query = self.query_norm(query.reshape(count, o.kv_heads, o.indexer_dim))
        key = self.key_norm(key.reshape(count, 1, o.indexer_dim))
        if rope is not None:
            ops.rope_(query, positions, rope)
            ops.rope_(key, positions, rope)
        kept.put(key, None)
        seen = kept.view()
        query = seen.as_keys(ops, query)
        return ops.choose_blocks(
            query, seen.keys, seen.cells, seen.starts, seen.counts, o.block_size, o.most_blocks,
            o.local_blocks,
        )  # fmt: skip


class BlockAttention(NormedSelfAttention):
    """Self-attention in which each key/value head reads the blocks of positions chosen for it."""

    options: BlockLayerOptions
    indexer: BlockIndexer = part("indexer")

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        o, ops, count = self.options, self.ops, len(hidden)
        query, key, value = self.project(hidden)
        query, key = self.place(
            query.reshape(count, o.heads, o.head_dim),
            key.reshape(count, o.kv_heads, o.head_dim),
            batch.positions,
            rope,
        )
        kept = cache.layer(self.index)
        assert isinstance(kept, IndexedLayerCache), "the cache has no keys of the indexer"
        kept.put(key, value.reshape(count, o.kv_heads, o.value_dim))
        cells, starts, counts = self.indexer.choose(kept.indexer, hidden, batch.positions, rope)
        seen = kept.view()
        assert not isinstance(seen.values, int)
        seen = replace(seen, keys=seen.keys.by_head(), values=seen.values.by_head(), cells=cells)
        of_head = ops.split(query.reshape(count, -1), o.kv_heads)
        mixed = [
            attend(
                ops, of_head[h].reshape(count, -1, o.head_dim),
                replace(seen, starts=starts[h], counts=counts[h]), o.attention_scale,
            )
            for h in range(o.kv_heads)
        ]  # fmt: skip
        joined = ops.join(mixed)
        return self.finish(joined if rows is None else joined[rows])


class ClampedFeedForward(FeedForward):
    activation: ClassVar[str] = "clamped_swiglu"


class ClampedExperts(MixtureOfExperts):
    activation: ClassVar[str] = "clamped_swiglu"


class ClampedSharedExpert(SharedExpert):
    activation: ClassVar[str] = "clamped_swiglu"


class ClampedSharedAndRouted(SharedAndRouted):
    routed: ClampedExperts = part()
    shared: ClampedSharedExpert = part()


def mixer_kind(options: LayerOptions) -> type[NormedSelfAttention]:
    return BlockAttention if isinstance(options, BlockLayerOptions) else NormedSelfAttention


def feed_forward_kind(options: LayerOptions) -> type[ClampedFeedForward | ClampedSharedAndRouted]:
    return ClampedSharedAndRouted if options.experts else ClampedFeedForward


class Layer(PreNormLayer):
    mixer: NormedSelfAttention = part(choose=mixer_kind)
    feed_forward: ClampedFeedForward | ClampedSharedAndRouted = part(choose=feed_forward_kind)  # type: ignore[assignment]


class MiniMaxM3(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(
            file, TextDefaults(neox=True, norm_eps=1e-6, rope_base=5e6, routing=Routing(0, sigmoid=True))
        )
        prefix = "attention.indexer"
        heads, dim = read_indexer(file)
        most, size = required(file, f"{prefix}.top_k"), required(file, f"{prefix}.block_size")
        local = scalar(file, f"{prefix}.local_blocks", 1)
        if not 0 <= local <= most:
            raise invalid(file, f"{prefix}.local_blocks", f"is {local}, of the {most} blocks attended to")
        most = max(within_context(file, most * size, size) // size, local)
        check_rotated(file, required(file, "rope.dimension_count"), dim)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            if not layer.experts:
                return layer
            if layer.kv_heads != heads:
                complaint = f"is {heads}, but layer {index} has {layer.kv_heads} key/value heads"
                raise invalid(file, f"{prefix}.head_count", complaint)
            check_indexer(file, index, heads, dim, query="indexer.q_proj")
            return BlockLayerOptions(
                **vars(layer), indexer_dim=dim, block_size=size, most_blocks=most, local_blocks=local
            )

        return options.each(own)
