"""Attention over a cache, shared by all models."""

from __future__ import annotations

from puna.kvcache.cache import KVView, LayerCache
from puna.ops import Array, Backend


def attention(
    ops: Backend,
    query: Array,  # [rows, heads, head_dim]
    key: Array,  # [rows, kv_heads, head_dim]
    value: Array,  # [rows, kv_heads, value_dim]
    cache: LayerCache,
    scale: float,
    *,
    softcap: float = 0.0,
    sinks: Array | None = None,
) -> Array:
    """Put the batch's keys and values into the cache, then attend over all that each row may see.

    Returns [rows, heads * value_dim]. Query head h reads kv head h * kv_heads // heads.
    """
    cache.put(key, value)
    return attend(ops, query, cache.view(), scale, softcap=softcap, sinks=sinks)


def attend(
    ops: Backend,
    query: Array,  # [rows, heads, head_dim]
    seen: KVView,
    scale: float,
    *,
    softcap: float = 0.0,
    sinks: Array | None = None,
) -> Array:
    """Attend over what is in a cache already: [rows, heads * value_dim]; zeros where a row sees nothing."""
    mixed = ops.attention(
        query, seen.keys, seen.values, seen.cells, seen.starts, seen.counts, scale, softcap, sinks
    )
    return mixed.reshape(len(query), -1)
