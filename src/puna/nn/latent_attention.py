"""Multi-head latent attention, whose cache holds one short vector per position for all heads."""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np

from puna.batch import BatchArrays
from puna.gguf import GGMLType
from puna.kvcache.cache import Cache, KVView
from puna.nn.attention import attend
from puna.nn.layers import InterleavedLinear, Linear, RMSNorm, StackedLinear
from puna.nn.module import Module, WeightSource, part, weight
from puna.ops import Array, Backend, Rope, Weight

#: Epsilon of the norms inside the attention, independent of the layer's.
_NORM_EPS = 1e-6


class LatentAttentionOptions(Protocol):
    """Layer options that latent attention reads."""

    @property
    def heads(self) -> int: ...
    @property
    def value_dim(self) -> int: ...
    @property
    def mixed_size(self) -> int: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def latent_dim(self) -> int: ...
    @property
    def nope_dim(self) -> int: ...
    @property
    def rope_dim(self) -> int: ...
    @property
    def query_rank(self) -> int: ...
    @property
    def attention_scale(self) -> float: ...
    @property
    def temperature_scale(self) -> float: ...
    @property
    def original_context(self) -> int: ...


class HeadLinear:
    """A linear for each head; the shape is [heads, out, in]."""

    def __init__(self, ops: Backend, weights: list[Weight]) -> None:
        self.ops = ops
        self.weights = weights
        for each in weights:
            ops.pack(each)

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        stacked = source.experts(f"{name}.weight", shape)
        if stacked is None:
            return None
        return cls(source.ops, stacked.matrices())

    def __call__(self, x: Array) -> Array:
        """Map [rows, heads, in] to [rows, heads, out]."""
        return self.ops.linear_heads(x, self.weights)


class KeysAndValues:
    """Keys and values of each head from a latent, as one tensor [heads, key + value, latent] of older files.

    `absorb` is the transposed half of the keys, which maps queries to latents; `expand` maps latents to
    values.
    """

    def __init__(self, absorb: HeadLinear, expand: HeadLinear) -> None:
        self.absorb = absorb
        self.expand = expand

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        heads, key, value, latent = shape
        joined = source.matrix(f"{name}.weight", (heads * (key + value), latent))
        if joined is None:
            return None
        starts = range(0, heads * (key + value), key + value)
        keys = [_transposed(joined.row_range(begin, begin + key)) for begin in starts]
        values = [joined.row_range(begin + key, begin + key + value) for begin in starts]
        made = cls(HeadLinear(source.ops, keys), HeadLinear(source.ops, values))
        joined.drop_data()
        return made


def _transposed(matrix: Weight) -> Weight:
    """Return the transpose: float32 for F32 and BF16, else float16, which exceeds quantised precision."""
    values = np.ascontiguousarray(matrix.values().T)
    if matrix.type in (GGMLType.F32, GGMLType.BF16):
        return Weight.from_values(matrix.name, values)
    return Weight(matrix.name, values.astype(np.float16), GGMLType.F16, values.shape)


class Queries(Module):
    """Queries of all heads, split into the part without rotation and the rotated part."""

    linear: InterleavedLinear = weight("attn_q", "heads", "nope_dim", "rope_dim", "hidden_size")

    def shared_vector(self, hidden: Array) -> Array:
        """Return the vector that all heads' queries are made from, for each row of [rows, hidden]."""
        return hidden

    def expand(self, vector: Array) -> list[Array]:
        """Map that vector to [rows, heads * nope_dim] and [rows, heads * rope_dim]."""
        return self.linear(vector)


class LowRankQueries(Queries):
    """Queries expanded from a short vector shared by all heads."""

    shared: Linear = weight("attn_q_a", "query_rank", "hidden_size")
    norm: RMSNorm = weight("attn_q_a_norm", "query_rank")
    linear: InterleavedLinear = weight("attn_q_b", "heads", "nope_dim", "rope_dim", "query_rank")

    def loaded(self) -> None:
        self.norm.eps = _NORM_EPS

    def shared_vector(self, hidden: Array) -> Array:
        return self.norm(self.shared(hidden))


def queries_kind(options: LatentAttentionOptions) -> type[Queries]:
    return LowRankQueries if options.query_rank else Queries


class LatentAttention(Module):
    """Multi-head latent attention (DeepSeek-AI, arXiv:2405.04434, section 2.1).

    The keys and values of all heads are linear in one latent per position; keys also have a rotated part
    shared by all heads. Each query is mapped into the space of latents, all heads attend to the latents as to
    one key/value head, and the results are expanded to values. Each latent is stored once: it is the value
    and the last part of the key.
    """

    options: LatentAttentionOptions
    sinks: Array | None = None  # [heads], in architectures with attention sinks
    queries: Queries = part(choose=queries_kind)
    latents: StackedLinear = weight("attn_kv_a_mqa", "latent_dim", "rope_dim", "hidden_size")
    latent_norm: RMSNorm = weight("attn_kv_a_norm", "latent_dim")
    absorb: HeadLinear = weight("attn_k_b", "heads", "latent_dim", "nope_dim")
    expand: HeadLinear = weight("attn_v_b", "heads", "value_dim", "latent_dim")
    output: Linear = weight("attn_output|attn_out", "hidden_size", "mixed_size")

    def loaded(self) -> None:
        self.latent_norm.eps = _NORM_EPS

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        o, ops = self.options, self.ops
        vector = self.queries.shared_vector(hidden)
        query, key = self.project(vector, hidden)
        if rope is not None:
            ops.rope_(query, batch.positions, rope)
            ops.rope_(key, batch.positions, rope)
        if o.temperature_scale:
            ops.temper_(query, batch.positions, o.temperature_scale, o.original_context, 0)
        cache.layer(self.index).put(key, None)  # values are the last part of keys
        seen = self.choose(cache, hidden, vector, batch, rope)
        mixed = attend(ops, query, seen, o.attention_scale, sinks=self.sinks)
        if rows is not None:
            mixed, hidden = mixed[rows], hidden[rows]
        values = self.gated(self.expand(mixed.reshape(len(mixed), o.heads, o.latent_dim)), hidden)
        return self.output(values.reshape(len(mixed), o.heads * o.value_dim))

    def project(self, vector: Array, hidden: Array) -> tuple[Array, Array]:
        """Return queries [rows, heads, dim] in the space of keys, and keys [rows, 1, dim].

        Both begin with the part that is rotated. `vector` is what queries are made from.
        """
        o, ops, count = self.options, self.ops, len(hidden)
        query, rotated = self.queries.expand(vector)
        latent, rotated_key = self.latents(hidden)
        latent = self.latent_norm(latent)
        query = query.reshape(count, o.heads, o.nope_dim)
        query = ops.join([rotated.reshape(count, o.heads, o.rope_dim), self.absorb(query)])
        key: Array = ops.join([rotated_key, latent]).reshape(count, 1, o.rope_dim + o.latent_dim)
        return query, key

    def gated(self, values: Array, hidden: Array) -> Array:
        """Apply output gates made from `hidden` to `values` [rows, heads, value_dim], if there are any."""
        return values

    def choose(
        self, cache: Cache, hidden: Array, vector: Array, batch: BatchArrays, rope: Rope | None
    ) -> KVView:
        """Return the cells that each row attends to; `vector` is what its queries are made from."""
        return cache.layer(self.index).view()


class JoinedLatentAttention(LatentAttention):
    """Latent attention whose key and value expansions are one tensor."""

    absorb = expand = None  # type: ignore[assignment]
    keys_and_values: KeysAndValues = weight("attn_kv_b", "heads", "nope_dim", "value_dim", "latent_dim")

    def loaded(self) -> None:
        super().loaded()
        self.absorb, self.expand = self.keys_and_values.absorb, self.keys_and_values.expand


class PlainQueries(LowRankQueries):
    """Queries expanded from a short vector, of which no part is rotated."""

    linear: Linear = weight("attn_q_b", "query_size", "query_rank")  # type: ignore[assignment]

    def expand(self, vector: Array) -> list[Array]:
        return [self.linear(vector)]


class PlainLatentAttention(LatentAttention):
    """Latent attention without a rotated part: a key is a latent (GLM 5.3 Flash).

    All norms have the epsilon of the layer's.
    """

    queries: PlainQueries = part()
    latents: Linear = weight("attn_kv_a_mqa", "latent_dim", "hidden_size")  # type: ignore[assignment]

    def loaded(self) -> None:
        super().loaded()
        self.latent_norm.eps = self.queries.norm.eps = self.options.norm_eps

    def project(self, vector: Array, hidden: Array) -> tuple[Array, Array]:
        o, count = self.options, len(hidden)
        [query] = self.queries.expand(vector)
        latent = self.latent_norm(self.latents(hidden))
        return self.absorb(query.reshape(count, o.heads, o.nope_dim)), latent.reshape(count, 1, o.latent_dim)


class GatedLatentAttention(LatentAttention):
    """Latent attention with sinks, and a sigmoid gate for each number of its output (Hy 4).

    All norms have the epsilon of the layer's.
    """

    sinks: Array = weight("attn_sinks", "heads")
    gate: Linear = weight("attn_gate", "mixed_size", "hidden_size")

    def loaded(self) -> None:
        super().loaded()
        self.latent_norm.eps = self.options.norm_eps
        if isinstance(self.queries, LowRankQueries):
            self.queries.norm.eps = self.options.norm_eps

    def gated(self, values: Array, hidden: Array) -> Array:
        return self.ops.sigmoid_gate(values.reshape(len(hidden), self.options.mixed_size), self.gate(hidden))


class HeadGatedLatentAttention(LatentAttention):
    """Latent attention with a sigmoid gate for each head's output (Ling 3)."""

    gate: Linear = weight("attn_gate", "heads", "hidden_size")

    def gated(self, values: Array, hidden: Array) -> Array:
        of_heads = values.reshape(-1, self.options.value_dim)
        return self.ops.sigmoid_gate(of_heads, self.gate(hidden).reshape(-1, 1))
