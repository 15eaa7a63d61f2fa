"""Self-attention over a KV cache and its variants: the mixer half of a transformer layer."""

from __future__ import annotations

from typing import Protocol

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache, KVView, LayerCache
from puna.nn.feed_forward import clamp
from puna.nn.layers import InterleavedLinear, Linear, RMSNorm, StackedLinear, Unused, linear_many, unit_norm
from puna.nn.module import Module, weight
from puna.ops import Array, Backend, Rope


def attend(
    ops: Backend,
    query: Array,  # [rows, heads, head_dim]
    seen: KVView,
    scale: float,
    *,
    softcap: float = 0.0,
    sinks: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Attend over cached keys and values: [rows, heads * value_dim], zeros for a row that sees no cell.

    Query head h reads kv head h * kv_heads // heads.
    """
    query = seen.as_keys(ops, query)
    mixed = ops.attention(
        query, seen.keys, seen.values, seen.cells, seen.starts, seen.counts, scale, softcap, sinks, bias,
        seen.places if bias is not None else None,
    )  # fmt: skip
    rows, heads, dim = mixed.shape
    joined: Array = mixed.reshape(rows, heads * dim)
    return joined


class AttentionOptions(Protocol):
    """Layer options that its attention reads."""

    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def value_dim(self) -> int: ...
    @property
    def attention_scale(self) -> float: ...
    @property
    def attention_softcap(self) -> float: ...


class BorrowingOptions(AttentionOptions, Protocol):
    @property
    def lender(self) -> int:
        """Number of the layer whose keys and values are used."""


class SelfAttention(Module):
    """Self-attention over the cache, with rotary positions where the layer has a `rope`.

    Subclasses change one step: where queries and keys come from (`project`), how they come to depend on their
    positions (`place`), or what rows attend to (`choose`).
    """

    options: AttentionOptions
    sinks: Array | None = None  # [heads], in architectures with attention sinks
    bias: Array | None = None  # [heads, 2 * reach + 1], added to scores by distance
    query: Linear = weight("attn_q", "query_size", "hidden_size")
    key: Linear = weight("attn_k", "key_size", "hidden_size")
    value: Linear = weight("attn_v", "value_size", "hidden_size")
    output: Linear = weight("attn_output", "hidden_size", "mixed_size")

    def project(self, hidden: Array) -> list[Array]:
        """Return queries, keys and values, [rows, heads * dim] each, and output gates if there are any."""
        return linear_many(hidden, self.query, self.key, self.value)

    def place(self, query: Array, key: Array, positions: Array, rope: Rope | None) -> tuple[Array, Array]:
        """Apply positions to queries and keys [rows, heads, head_dim]; may change both in place."""
        if rope is not None:
            self.ops.rope_(query, positions, rope)
            self.ops.rope_(key, positions, rope)
        return query, key

    def choose(
        self, kept: LayerCache, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None
    ) -> KVView:
        """Return the view of what the rows `hidden` [rows, hidden] attend to, whose keys are `kept`."""
        return kept.view()

    def gated(self, mixed: Array, gate: Array) -> Array:
        """Apply the output gates to `mixed` [rows, heads * value_dim]."""
        return self.ops.sigmoid_gate(mixed, gate)

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        o, count = self.options, len(hidden)
        query, key, value, *gates = self.project(hidden)
        query, key = self.place(
            query.reshape(count, o.heads, o.head_dim),
            key.reshape(count, o.kv_heads, o.head_dim),
            batch.positions,
            rope,
        )
        kept = cache.layer(self.index)
        kept.put(key, value.reshape(count, o.kv_heads, o.value_dim))
        seen = self.choose(kept, hidden, batch, cache, rope)
        mixed = attend(
            self.ops, query, seen, o.attention_scale, softcap=o.attention_softcap, sinks=self.sinks,
            bias=self.bias,
        )  # fmt: skip
        if gates:
            mixed = self.gated(mixed, gates[0])
        return self.finish(mixed if rows is None else mixed[rows])

    def finish(self, mixed: Array) -> Array:
        """Map what the heads have read, [rows, heads * value_dim], to [rows, hidden]."""
        return self.output(mixed)


class NormedSelfAttention(SelfAttention):
    """Self-attention with norms of each head's query and key before rotation (arXiv:2010.04245)."""

    query_norm: RMSNorm = weight("attn_q_norm", "head_dim")
    key_norm: RMSNorm = weight("attn_k_norm", "head_dim")

    def place(self, query: Array, key: Array, positions: Array, rope: Rope | None) -> tuple[Array, Array]:
        return super().place(self.query_norm(query), self.key_norm(key), positions, rope)


class AllNormedSelfAttention(NormedSelfAttention):
    """Self-attention that also normalises each head's value, without weights (Gemma 3n)."""

    def loaded(self) -> None:
        self.value_norm = unit_norm(self.ops, self.options.value_dim, self.query_norm.eps)

    def project(self, hidden: Array) -> list[Array]:
        query, key, value = super().project(hidden)
        return [query, key, self.value_norm(value.reshape(-1, self.options.value_dim))]


class KeysAsValues(AllNormedSelfAttention):
    """Self-attention whose values are its keys before their norm and rotation (Gemma 4)."""

    value = None  # type: ignore[assignment]

    def project(self, hidden: Array) -> list[Array]:
        query, key = linear_many(hidden, self.query, self.key)
        return [query, key, self.value_norm(key.reshape(-1, self.options.value_dim))]


class BorrowingAttention(Module):
    """Attention of this layer's queries over the keys and values of another layer (`lender`).

    Files may still hold the key and value projections that the layer was trained with; they are not used.
    """

    options: BorrowingOptions
    query: Linear = weight("attn_q", "query_size", "hidden_size")
    query_norm: RMSNorm = weight("attn_q_norm", "head_dim")
    output: Linear = weight("attn_output", "hidden_size", "mixed_size")
    key: Unused | None = weight("attn_k", "key_size", "hidden_size", optional=True)
    value: Unused | None = weight("attn_v", "value_size", "hidden_size", optional=True)
    key_norm: Unused | None = weight("attn_k_norm", "head_dim", optional=True)

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        """Map [rows, hidden] to the same shape, or only to its rows `rows` (int64)."""
        o, count = self.options, len(hidden)
        query = self.query_norm(self.query(hidden).reshape(count, o.heads, o.head_dim))
        if rope is not None:
            self.ops.rope_(query, batch.positions, rope)
        seen = cache.layer(o.lender).view()
        seen = seen if batch.chosen is None else seen.of(batch.chosen)
        mixed = attend(self.ops, query, seen, o.attention_scale, softcap=o.attention_softcap)
        return self.output(mixed if rows is None else mixed[rows])


class WideNormedSelfAttention(SelfAttention):
    """Self-attention that normalises queries and keys across all heads (OLMo Team, arXiv:2501.00656)."""

    query_norm: RMSNorm = weight("attn_q_norm", "query_size")
    key_norm: RMSNorm = weight("attn_k_norm", "key_size")

    def project(self, hidden: Array) -> list[Array]:
        query, key, value = super().project(hidden)
        return [self.query_norm(query), self.key_norm(key), value]


class GatedSelfAttention(NormedSelfAttention):
    """Self-attention with a sigmoid gate for each output value (Qiu et al., arXiv:2505.06708).

    The query tensor also holds the gates: each head's queries, then its gates.
    """

    query = None  # type: ignore[assignment]
    queries_and_gates: InterleavedLinear = weight("attn_q", "heads", "head_dim", "value_dim", "hidden_size")

    def project(self, hidden: Array) -> list[Array]:
        query, gate = self.queries_and_gates.linears
        return linear_many(hidden, query, self.key, self.value, gate)


class SeparatelyGatedSelfAttention(NormedSelfAttention):
    """Self-attention with a sigmoid gate for each output value, whose weights are a tensor of their own."""

    gate: Linear = weight("attn_gate", "mixed_size", "hidden_size")

    def project(self, hidden: Array) -> list[Array]:
        return linear_many(hidden, self.query, self.key, self.value, self.gate)


class FusedSelfAttention(SelfAttention):
    """Self-attention whose query, key and value weights are one tensor."""

    query = key = value = None  # type: ignore[assignment]
    joined: StackedLinear = weight("attn_qkv", "query_size", "key_size", "value_size", "hidden_size")

    def project(self, hidden: Array) -> list[Array]:
        return self.joined(hidden)


class FusedNormedSelfAttention(NormedSelfAttention, FusedSelfAttention):
    """Self-attention with normalised queries and keys, from one tensor."""


class ChoosingOptions(Protocol):
    @property
    def fused(self) -> bool:
        """Whether the file has queries, keys and values in one tensor."""


def fused_or_separate(options: ChoosingOptions) -> type[SelfAttention]:
    """Return the attention class for the file's layout."""
    return FusedSelfAttention if options.fused else SelfAttention


class ClampingOptions(AttentionOptions, Protocol):
    @property
    def clamp(self) -> float:
        """Largest magnitude of queries, keys and values; 0: no limit."""


class ClampedSelfAttention(FusedSelfAttention):
    """Fused self-attention that limits its queries, keys and values (MPT, DBRX)."""

    options: ClampingOptions

    def project(self, hidden: Array) -> list[Array]:
        found, most = super().project(hidden), self.options.clamp
        return [clamp(self.ops, each, most) for each in found] if most else found
