"""Llama 4 (Scout, Maverick) without its images, and MobileLLM models, which are dense ones of it.

Reference: `Llama4ForCausalLM` in Hugging Face transformers. Most layers rotate queries and keys and attend
within chunks of the context; in between stand layers without positions (NoPE) that see all of it. GGUF files
hold the query and key projections as published: rotary pairs are neighbours already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from puna.errors import ModelError
from puna.kvcache.cache import Cache
from puna.kvcache.causal import CausalCache
from puna.kvcache.chunked import ChunkedCache
from puna.kvcache.types import KVTypes
from puna.kvcache.wrapper import WrapperCache, by_type
from puna.model.base import register
from puna.model.decoder import Decoder, DecoderLayer, DecoderOptions, SelfAttention, table_rows
from puna.model.metadata import first_of, flag, number, positive, required, scalar
from puna.model.rope import RopeOptions
from puna.nn.experts import MixtureOfExperts
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import Linear, RMSNorm
from puna.nn.module import Module, blocks, part, weight
from puna.ops import Array, Rope, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True)
class Llama4Options(DecoderOptions):
    """Those of a decoder (`feed_forward_size` is that of layers without experts), and Llama 4's own."""

    no_rope_interval: int  # every so many layers one does not rotate; 0: all do
    chunk_size: int  # positions that rotating layers see together; 0: they see all earlier ones
    qk_norm: bool  # of rotating layers
    temperature_tuning: bool  # of the others
    temperature_scale: float
    floor_scale: float
    expert_count: int  # 0: no layer has experts
    experts_used: int  # per token
    expert_interval: int  # every so many layers one has experts
    expert_feed_forward_size: int  # of each expert, and of the one all tokens share

    @property
    def routing(self) -> Routing:
        return Routing(self.experts_used, sigmoid=True, normalize=False)

    def rotates(self, layer: int) -> bool:
        return not self.no_rope_interval or (layer + 1) % self.no_rope_interval != 0

    def has_experts(self, layer: int) -> bool:
        return self.expert_count > 0 and (layer + 1) % self.expert_interval == 0

    @property
    def layer_types(self) -> list[str]:
        """What each layer sees: "chunk" or "all"."""
        return ["chunk" if self.chunk_size and self.rotates(i) else "all" for i in range(self.block_count)]


class Attention(SelfAttention):
    options: Llama4Options

    def loaded(self) -> None:
        self.rotates = self.options.rotates(self.index)
        ones = self.ops.array(np.ones(self.options.head_dim, np.float32))
        self.unit_norm = RMSNorm(self.ops, ones, self.options.norm_eps)

    def place(self, query: Array, key: Array, positions: Array, rope: Rope) -> tuple[Array, Array]:
        o = self.options
        if self.rotates:
            query, key = super().place(query, key, positions, rope)
            return (self.unit_norm(query), self.unit_norm(key)) if o.qk_norm else (query, key)
        if o.temperature_tuning:
            self.ops.temper_(query, positions, o.temperature_scale, o.floor_scale)
        return query, key


class RoutedExperts(MixtureOfExperts):
    """Experts whose inputs, not outputs, are multiplied by their scores."""

    scale_inputs: ClassVar[bool] = True


class SharedExpert(FeedForward):
    """The expert every token goes through."""

    gate: Linear = weight("ffn_gate_shexp", "expert_feed_forward_size", "hidden_size")
    up: Linear = weight("ffn_up_shexp", "expert_feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_down_shexp", "hidden_size", "expert_feed_forward_size")


class SparseFeedForward(Module):
    """The sum of what the chosen experts and the shared one make of a token."""

    options: Llama4Options
    routed: RoutedExperts = part()
    shared: SharedExpert = part()

    def forward(self, hidden: Array) -> Array:
        return self.shared.forward(hidden) + self.routed.forward(hidden)


def feed_forward_kind(options: Llama4Options, layer: int) -> type[FeedForward | SparseFeedForward]:
    return SparseFeedForward if options.has_experts(layer) else FeedForward


class Layer(DecoderLayer):
    mixer: Attention = part()
    feed_forward: FeedForward | SparseFeedForward = part(choose=feed_forward_kind)


@register("llama4")
class Llama4(Decoder):
    options: Llama4Options
    layers: list[Layer] = blocks("blk")
    rope_factors: Array | None = weight("rope_freqs", "rope_pairs", optional=True)

    def layer_ropes(self) -> list[Rope]:
        return [self.options.rope.build(factors=self.rope_factors)] * self.options.block_count

    def shift(self, layer: int, keys: Array, offset: int) -> None:
        if self.options.rotates(layer):  # the norm that came after the first turn does not mind another
            super().shift(layer, keys, offset)

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        shapes = by_type(self.kv_shapes(), self.options.layer_types)
        how: dict[str, Any] = {
            "sequences": sequences, "context": context, "capacity": capacity, "types": types,
            "shift": self.shift,
        }  # fmt: skip
        caches: list[Cache] = []
        if "chunk" in shapes:
            caches.append(ChunkedCache(shapes["chunk"], chunk=self.options.chunk_size, **how))
        if "all" in shapes:
            caches.append(CausalCache(shapes["all"], **how))
        return WrapperCache(*caches)

    @classmethod
    def read_options(cls, file: GGUFFile) -> Llama4Options:
        heads = required(file, "attention.head_count")
        kv_heads = required(file, "attention.head_count_kv", heads)
        if heads % kv_heads:
            raise ModelError(
                f"{file.path}: {heads} query heads cannot share as many key/value heads as "
                f"'{file.architecture}.attention.head_count_kv' says: {kv_heads}"
            )
        head_dim = required(file, first_of(file, "attention.key_length", "attention.head_dim"), 128)
        experts = scalar(file, "expert_count", 0)
        experts_used = required(file, "expert_used_count") if experts else 0
        if not 0 <= experts_used <= experts:
            raise ModelError(
                f"{file.path}: '{file.architecture}.expert_used_count' is {experts_used}, but "
                f"'{file.architecture}.expert_count' is {experts}"
            )
        expert_interval = required(file, "interleave_moe_layer_step", 1) if experts else 0
        # So llama.cpp marks models whose layers all rotate and see everything: MobileLLM.
        everything = scalar(file, "attention.sliding_window", 1) == 0
        return Llama4Options(
            vocab_size=table_rows(file, "token_embd.weight"),
            block_count=required(file, "block_count"),
            hidden_size=required(file, "embedding_length"),
            feed_forward_size=required(file, "feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=number(file, "attention.layer_norm_rms_epsilon", 1e-5),
            rope=RopeOptions.read(file, head_dim, base=500000.0),
            no_rope_interval=0 if everything else required(file, "no_rope_interval", 4),
            chunk_size=0 if everything else required(file, "attention.chunk_size", 8192),
            # Maverick was trained without; its files may say so, or leave it to be known.
            qk_norm=flag(file, "use_qk_norm", experts != 128),
            temperature_tuning=flag(file, "attention.temperature_tuning", True),
            temperature_scale=number(file, "attention.scale", 0.1),
            floor_scale=positive(file, "attention.floor_scale", 8192.0),
            expert_count=experts,
            experts_used=experts_used,
            expert_interval=expert_interval,
            expert_feed_forward_size=required(file, "expert_feed_forward_length") if experts else 0,
        )
