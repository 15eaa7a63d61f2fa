"""Llama 2 and 3.x, Mistral, Mixtral, and everything else that is the same network under their name.

Touvron et al., arXiv:2307.09288; Grattafiori et al., arXiv:2407.21783; with experts in place of the
feed-forward network: Jiang et al., arXiv:2401.04088. GGUF files hold the query and key projections permuted
so that rotary pairs are neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from puna import ops
from puna.errors import ModelError
from puna.kvcache.cache import Cache, LayerCache
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.types import KVTypes
from puna.model.base import TextModel, register
from puna.model.input import Batch
from puna.model.metadata import number, required, scalar
from puna.model.rope import RopeOptions
from puna.nn.attention import attention
from puna.nn.experts import MixtureOfExperts
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import Embedding, Linear, RMSNorm, linear_many
from puna.nn.module import Module, blocks, part, weight
from puna.ops import Rope, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True)
class LlamaOptions:
    """Sizes and constants of one Llama, in the words of its GGUF keys."""

    vocab_size: int
    block_count: int
    hidden_size: int
    feed_forward_size: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeOptions
    expert_count: int  # 0: an ordinary feed-forward network
    experts_used: int  # per token

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def rope_pairs(self) -> int:
        return self.rope.pairs

    @property
    def expert_feed_forward_size(self) -> int:
        return self.feed_forward_size

    @property
    def routing(self) -> Routing:
        return Routing(self.experts_used)


class Attention(Module):
    options: LlamaOptions
    query: Linear = weight("attn_q", "query_size", "hidden_size")
    key: Linear = weight("attn_k", "kv_size", "hidden_size")
    value: Linear = weight("attn_v", "kv_size", "hidden_size")
    output: Linear = weight("attn_output", "hidden_size", "query_size")

    def forward(
        self, hidden: torch.Tensor, batch: Batch, cache: LayerCache, rope: Rope, rows: torch.Tensor | None
    ) -> torch.Tensor:
        o = self.options
        count = len(hidden)
        projected = linear_many(hidden, self.query, self.key, self.value)
        query = projected[0].view(count, o.heads, o.head_dim)
        key = projected[1].view(count, o.kv_heads, o.head_dim)
        value = projected[2].view(count, o.kv_heads, o.head_dim)
        ops.rope_(query, batch.positions, rope)
        ops.rope_(key, batch.positions, rope)
        mixed = attention(query, key, value, cache, 1 / math.sqrt(o.head_dim))
        return self.output(mixed if rows is None else mixed[rows])


def feed_forward_kind(options: LlamaOptions, layer: int) -> type[FeedForward | MixtureOfExperts]:
    return MixtureOfExperts if options.expert_count else FeedForward


class Layer(Module):
    options: LlamaOptions
    attention_norm: RMSNorm = weight("attn_norm", "hidden_size")
    attention: Attention = part()
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")
    feed_forward: FeedForward | MixtureOfExperts = part(choose=feed_forward_kind)

    def forward(
        self, hidden: torch.Tensor, batch: Batch, cache: LayerCache, rope: Rope, rows: torch.Tensor | None
    ) -> torch.Tensor:
        attended = self.attention.forward(self.attention_norm(hidden), batch, cache, rope, rows)
        residual = hidden if rows is None else hidden[rows]
        hidden, normed = self.feed_forward_norm.after_adding(attended, residual)
        return hidden + self.feed_forward.forward(normed)


@register("llama")
class Llama(TextModel):
    options: LlamaOptions
    token_embedding: Embedding = weight("token_embd", "vocab_size", "hidden_size")
    layers: list[Layer] = blocks("blk")
    output_norm: RMSNorm = weight("output_norm", "hidden_size")
    output: Linear = weight("output", "vocab_size", "hidden_size", tied_to="token_embd")
    rope_factors: torch.Tensor | None = weight("rope_freqs", "rope_pairs", optional=True)

    def loaded(self) -> None:
        self.rope = self.options.rope.build(factors=self.rope_factors)
        self._unscaled_rope = self.rope.without_magnitude()

    def forward(self, batch: Batch, cache: Cache) -> torch.Tensor:
        hidden = self.token_embedding(batch.tokens)
        for i, layer in enumerate(self.layers):
            last = i == len(self.layers) - 1  # only the rows to be sampled leave the last layer
            hidden = layer.forward(hidden, batch, cache.layer(i), self.rope, batch.outputs if last else None)
        return self.output(self.output_norm(hidden))

    def shift(self, layer: int, keys: torch.Tensor, offset: int) -> None:
        ops.rope_(keys, torch.full((len(keys),), offset, dtype=torch.int32), self._unscaled_rope)

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        shapes = self.kv_shapes(self.options)
        return CausalCache(
            shapes, sequences=sequences, context=context, capacity=capacity, types=types, shift=self.shift
        )

    @classmethod
    def kv_shapes(cls, options: LlamaOptions) -> list[KVShape]:
        return [KVShape(options.kv_heads, options.head_dim, options.head_dim)] * options.block_count

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
        embedding = file.tensors.get("token_embd.weight")
        return LlamaOptions(
            vocab_size=embedding.shape[0] if embedding else 0,
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
