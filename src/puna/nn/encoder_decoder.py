"""Attention of a decoder to what an encoder has read (Vaswani et al., arXiv:1706.03762, section 3.2.3)."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache, KVView, LayerCache
from puna.nn.attention import AttentionOptions, attend
from puna.nn.layers import Linear, RMSNorm, linear_many
from puna.nn.module import Module, part, weight
from puna.nn.transformer_layer import PreNormLayer, ResidualOptions
from puna.ops import Array, Rope


class EncoderDecoderOptions(AttentionOptions, ResidualOptions, Protocol):
    """Layer options that attention to an encoder reads."""

    @property
    def cross_layer(self) -> int:
        """Number of the cache layer with the keys and values of what the encoder read."""


class EncoderDecoderAttention(Module):
    """Attention whose keys and values are computed once from an encoder's states, and cached."""

    options: EncoderDecoderOptions
    query: Linear = weight("cross_attn_q", "query_size", "hidden_size")
    key: Linear = weight("cross_attn_k", "key_size", "hidden_size")
    value: Linear = weight("cross_attn_v", "value_size", "hidden_size")
    output: Linear = weight("cross_attn_o", "hidden_size", "mixed_size")

    def remember(self, states: Array, cache: LayerCache) -> None:
        """Store keys and values of all that the batch brings, from its concatenated states [rows, hidden]."""
        o, count = self.options, len(states)
        key, value = linear_many(states, self.key, self.value)
        cache.put(key.reshape(count, o.kv_heads, o.head_dim), value.reshape(count, o.kv_heads, o.value_dim))

    def forward(self, hidden: Array, seen: KVView) -> Array:
        """Map [rows, hidden] to the same shape, each row by the states that it may see."""
        return self.output(attend(self.ops, self._queries(hidden), seen, self.options.attention_scale))

    def show(self, hidden: Array, seen: KVView, batch: BatchArrays, *, only_outputs: bool) -> None:
        """Show what `forward` does to the observers of rows of the batch, or of its wanted rows."""
        query, scale = self._queries(hidden), self.options.attention_scale
        for each in batch.observed:
            rows = each.outputs if only_outputs else each.rows
            part = seen.of(self.ops.array(np.arange(rows.start, rows.stop)))
            each.observer.take(self.index, each.position, query[rows], part, scale, self.ops)

    def _queries(self, hidden: Array) -> Array:
        queries: Array = self.query(hidden).reshape(len(hidden), self.options.heads, self.options.head_dim)
        return queries


class EncoderDecoderLayer(PreNormLayer):
    """Layer of a decoder, which attends to its own text and then to what the encoder read."""

    options: EncoderDecoderOptions
    cross_norm: RMSNorm = weight("cross_attn_norm", "hidden_size")
    cross: EncoderDecoderAttention = part()

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.mixer.forward(self.mixer_norm(hidden), batch, cache, rope, rows)
        seen = cache.layer(self.options.cross_layer).view()
        if rows is not None:
            hidden, seen = hidden[rows], seen.of(rows)
        hidden, normed = self.cross_norm.after_adding(mixed, hidden)
        if batch.observed:
            self.cross.show(normed, seen, batch, only_outputs=rows is not None)
        hidden, normed = self.feed_forward_norm.after_adding(self.cross.forward(normed, seen), hidden)
        total: Array = hidden + self.feed_forward.forward(normed)
        return total
