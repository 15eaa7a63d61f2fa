"""What the decoders have in common: layers that mix tokens, then feed them forward, each on normed inputs.

An architecture's file says what it does otherwise. Llama is this and nothing else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from puna.batch import Batch
from puna.kvcache.cache import Cache
from puna.kvcache.storage import KVShape
from puna.model.base import TextModel
from puna.model.rope import RopeOptions
from puna.nn.attention import attention
from puna.nn.layers import Embedding, Linear, RMSNorm, linear_many
from puna.nn.module import Module, weight
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True)
class DecoderOptions:
    """Sizes and constants, in the words of GGUF keys."""

    vocab_size: int
    block_count: int
    hidden_size: int
    feed_forward_size: int
    heads: int
    kv_heads: int
    head_dim: int  # of queries and keys
    norm_eps: float
    rope: RopeOptions

    @property
    def value_dim(self) -> int:
        """Of a value's head."""
        return self.head_dim

    @property
    def attention_scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def value_size(self) -> int:
        return self.kv_heads * self.value_dim

    @property
    def mixed_size(self) -> int:
        return self.heads * self.value_dim

    @property
    def rope_pairs(self) -> int:
        return self.rope.pairs


class SelfAttention(Module):
    """Rotated queries and keys, attention, and the way back to the hidden size."""

    options: DecoderOptions
    query: Linear = weight("attn_q", "query_size", "hidden_size")
    key: Linear = weight("attn_k", "key_size", "hidden_size")
    value: Linear = weight("attn_v", "value_size", "hidden_size")
    output: Linear = weight("attn_output", "hidden_size", "mixed_size")

    def place(self, query: Array, key: Array, positions: Array, rope: Rope) -> tuple[Array, Array]:
        """What makes queries [rows, heads, head_dim] and keys depend on their positions; may change both."""
        self.ops.rope_(query, positions, rope)
        self.ops.rope_(key, positions, rope)
        return query, key

    def forward(self, hidden: Array, batch: Batch, cache: Cache, rope: Rope, rows: Array | None) -> Array:
        o = self.options
        count = len(hidden)
        projected = linear_many(hidden, self.query, self.key, self.value)
        query, key = self.place(
            projected[0].reshape(count, o.heads, o.head_dim),
            projected[1].reshape(count, o.kv_heads, o.head_dim),
            batch.positions,
            rope,
        )
        value = projected[2].reshape(count, o.kv_heads, o.value_dim)
        mixed = attention(self.ops, query, key, value, cache.layer(self.index), o.attention_scale)
        return self.output(mixed if rows is None else mixed[rows])


class NormedSelfAttention(SelfAttention):
    """With norms of each head's query and key before they are rotated (Henry et al., arXiv:2010.04245)."""

    query_norm: RMSNorm = weight("attn_q_norm", "head_dim")
    key_norm: RMSNorm = weight("attn_k_norm", "head_dim")

    def place(self, query: Array, key: Array, positions: Array, rope: Rope) -> tuple[Array, Array]:
        return super().place(self.query_norm(query), self.key_norm(key), positions, rope)


class Mixer(Protocol):
    """The half of a layer in which tokens see each other."""

    def forward(self, hidden: Array, batch: Batch, cache: Cache, rope: Rope, rows: Array | None) -> Array:
        """[rows, hidden] to the same, or to `rows` of it (int64)."""


class TokenWise(Protocol):
    """The half in which every token is on its own."""

    def forward(self, hidden: Array) -> Array:
        """[rows, hidden] to the same."""


class DecoderLayer(Module):
    """Both halves on normed inputs, each added to what it was given. Subclasses say what they are."""

    mixer_norm: RMSNorm = weight("attn_norm", "hidden_size")
    mixer: Mixer
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")
    feed_forward: TokenWise

    def forward(self, hidden: Array, batch: Batch, cache: Cache, rope: Rope, rows: Array | None) -> Array:
        """[rows, hidden] to the same, or to `rows` of it (int64)."""
        mixed = self.mixer.forward(self.mixer_norm(hidden), batch, cache, rope, rows)
        residual = hidden if rows is None else hidden[rows]
        hidden, normed = self.feed_forward_norm.after_adding(mixed, residual)
        return hidden + self.feed_forward.forward(normed)


class Decoder(TextModel):
    """Embedding, layers, norm, output. Subclasses declare `layers` and say how theirs rotate."""

    options: DecoderOptions
    token_embedding: Embedding = weight("token_embd", "vocab_size", "hidden_size")
    layers: list[Any]
    output_norm: RMSNorm = weight("output_norm", "hidden_size")
    output: Linear = weight("output", "vocab_size", "hidden_size", tied_to="token_embd")

    def loaded(self) -> None:
        self.ropes = self.layer_ropes()

    def layer_ropes(self) -> list[Rope]:
        """The rotation of each layer."""
        return [self.options.rope.build()] * self.options.block_count

    def hidden(self, batch: Batch, cache: Cache) -> Array:
        return self.run(self.token_embedding(batch.tokens), batch, cache)

    def logits(self, hidden: Array) -> Array:
        return self.output(hidden)

    def run(self, hidden: Array, batch: Batch, cache: Cache) -> Array:
        """All layers and the last norm: [rows, hidden] to [wanted rows, hidden]."""
        for i, (layer, rope) in enumerate(zip(self.layers, self.ropes, strict=True)):
            last = i == len(self.layers) - 1  # only the rows to be sampled leave the last layer
            hidden = layer.forward(hidden, batch, cache, rope, batch.outputs if last else None)
        return self.output_norm(hidden)

    def shift(self, layer: int, keys: Array, offset: int) -> None:
        positions = self.ops.array(np.full(len(keys), offset, np.int32))
        self.ops.rope_(keys, positions, self.ropes[layer].without_magnitude())

    def kv_shapes(self) -> list[KVShape]:
        o = self.options
        return [KVShape(o.kv_heads, o.head_dim, o.value_dim)] * o.block_count


def table_rows(file: GGUFFile, name: str) -> int:
    """Rows of tensor `name`; 0 when there is none, which loading will complain of."""
    tensor = file.tensors.get(name)
    return tensor.shape[0] if tensor else 0
