"""Llama 2 and 3.x, Mistral, Mixtral, and everything else that is the same network under their name.

Touvron et al., arXiv:2307.09288; Grattafiori et al., arXiv:2407.21783; with experts in place of the
feed-forward network: Jiang et al., arXiv:2401.04088. GGUF files hold the query and key projections permuted
so that rotary pairs are neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.errors import ModelError
from puna.kvcache.cache import Cache
from puna.kvcache.causal import CausalCache
from puna.kvcache.types import KVTypes
from puna.model.base import register
from puna.model.decoder import Decoder, DecoderLayer, DecoderOptions, SelfAttention, table_rows
from puna.model.metadata import number, required, scalar
from puna.model.rope import RopeOptions
from puna.nn.experts import MixtureOfExperts
from puna.nn.feed_forward import FeedForward
from puna.nn.module import blocks, part, weight
from puna.ops import Array, Rope, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True)
class LlamaOptions(DecoderOptions):
    """Those of a decoder, and those of experts."""

    expert_count: int  # 0: an ordinary feed-forward network
    experts_used: int  # per token

    @property
    def expert_feed_forward_size(self) -> int:
        return self.feed_forward_size

    @property
    def routing(self) -> Routing:
        return Routing(self.experts_used)


def feed_forward_kind(options: LlamaOptions, layer: int) -> type[FeedForward | MixtureOfExperts]:
    return MixtureOfExperts if options.expert_count else FeedForward


class Layer(DecoderLayer):
    mixer: SelfAttention = part()
    feed_forward: FeedForward | MixtureOfExperts = part(choose=feed_forward_kind)


@register("llama")
class Llama(Decoder):
    options: LlamaOptions
    layers: list[Layer] = blocks("blk")
    rope_factors: Array | None = weight("rope_freqs", "rope_pairs", optional=True)

    def layer_ropes(self) -> list[Rope]:
        return [self.options.rope.build(factors=self.rope_factors)] * self.options.block_count

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        shapes = self.kv_shapes()
        return CausalCache(
            shapes, sequences=sequences, context=context, capacity=capacity, types=types, shift=self.shift
        )

    @classmethod
    def read_options(cls, file: GGUFFile) -> LlamaOptions:
        hidden = required(file, "embedding_length")
        heads = required(file, "attention.head_count")
        kv_heads = scalar(file, "attention.head_count_kv", heads)
        if not heads or not kv_heads or heads % kv_heads:
            raise ModelError(f"{file.path}: {heads} query heads cannot share {kv_heads} key/value heads")
        head_dim = scalar(file, "attention.key_length", hidden // heads)
        experts = scalar(file, "expert_count", 0)
        experts_used = required(file, "expert_used_count") if experts else 0
        if experts_used > experts:
            raise ModelError(f"{file.path}: {experts_used} experts per token, but only {experts} there are")
        return LlamaOptions(
            vocab_size=table_rows(file, "token_embd.weight"),
            block_count=required(file, "block_count"),
            hidden_size=hidden,
            feed_forward_size=required(file, "feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=number(file, "attention.layer_norm_rms_epsilon", 1e-5),
            rope=RopeOptions.read(file, head_dim),
            expert_count=experts,
            experts_used=experts_used,
        )
