"""Attention over a cache, shared by all models.

It is done by `ops.attention`, which reads the cache by index lists, or, with `PUNA_ATTENTION=sdpa`, by
torch's scaled_dot_product_attention over a dense view (`sdpa.py`). This is the one place that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from puna import ops
from puna.config import env
from puna.kvcache.cache import KVView, LayerCache
from puna.nn.sdpa import sdpa


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
    return attend(query, cache.view(), scale, softcap=softcap, sinks=sinks).reshape(len(query), -1)


def attend(
    query: torch.Tensor,  # [rows, heads, head_dim]
    seen: KVView,
    scale: float,
    *,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attend over what is in a cache already: [rows, heads, value_dim]; zeros where a row sees nothing."""
    return _active(query, seen, scale, softcap, sinks)


def _by_lists(
    query: torch.Tensor, seen: KVView, scale: float, softcap: float, sinks: torch.Tensor | None
) -> torch.Tensor:
    return ops.attention(
        query, seen.keys, seen.values, seen.cells, seen.starts, seen.counts, scale, softcap, sinks
    )


_Attend = Callable[[torch.Tensor, KVView, float, float, torch.Tensor | None], torch.Tensor]
_BACKENDS: dict[str, _Attend] = {"lists": _by_lists, "sdpa": sdpa}


def _load(name: str) -> _Attend:
    if name not in _BACKENDS:
        raise ValueError(f"attention {name!r} is none of {', '.join(_BACKENDS)} (see PUNA_ATTENTION)")
    return _BACKENDS[name]


def _choose() -> _Attend:
    return _load(env("ATTENTION", "lists"))


_active = _choose()


@contextmanager
def use(name: str) -> Iterator[None]:
    """Inside a `with` block attend by `lists` or `sdpa`, in the whole process (for comparisons)."""
    global _active
    before, _active = _active, _load(name)
    try:
        yield
    finally:
        _active = before
