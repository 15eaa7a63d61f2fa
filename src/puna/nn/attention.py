"""Attention over a cache, shared by all models."""

from __future__ import annotations

import torch

from puna import ops
from puna.kvcache.cache import LayerCache


def attention(
    query: torch.Tensor,  # [rows, heads, head_dim]
    key: torch.Tensor,  # [rows, kv_heads, head_dim]
    value: torch.Tensor,  # [rows, kv_heads, value_dim]
    cache: LayerCache,
    scale: float,
    *,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Remember the batch's keys and values, then attend over all each row may see.

    Returns [rows, heads * value_dim]. Query head h reads kv head h * kv_heads // heads.
    """
    cache.put(key, value)
    seen = cache.view()
    mixed = ops.attention(
        query, seen.keys, seen.values, seen.cells, seen.starts, seen.counts, scale, softcap, sinks
    )
    return mixed.reshape(len(query), -1)
