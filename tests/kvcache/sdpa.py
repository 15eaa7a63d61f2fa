"""Attention by torch's scaled_dot_product_attention, over a dense view of a cache."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from puna.errors import NotSupportedError
from puna.kvcache.cache import KVView
from puna.kvcache.dense import DenseConfig, dense_view

#: Its fused kernels want rows of the mask that begin at multiples of 16 bytes.
CONFIG = DenseConfig(padding=8)


def sdpa(
    query: torch.Tensor,  # [rows, heads, head_dim]
    seen: KVView,
    scale: float,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """What `ops.attention` gives, to rounding: [rows, heads, value_dim]. Rows that see nothing give zeros.

    Raises `NotSupportedError` for capped scores, which that function cannot compute.
    """
    if softcap:
        raise NotSupportedError(
            f"this model caps its attention scores at {softcap:g}, which torch's "
            "scaled_dot_product_attention cannot do; run it without PUNA_ATTENTION=sdpa"
        )
    view = dense_view(seen, CONFIG)
    keys, values, mask = view.keys, view.values, view.mask[:, None, :]  # [kv_heads, columns, ...]
    rows, heads, _ = query.shape
    group = heads // len(keys)
    if sinks is not None:  # one more logit per head that takes its share and gives nothing
        columns = keys.shape[1]
        keys = torch.nn.functional.pad(keys, (0, 0, 0, 8))
        values = torch.nn.functional.pad(values, (0, 0, 0, 8))
        full = torch.full((rows, heads, columns + 8), -torch.inf)
        full[..., :columns] = mask
        full[..., columns] = sinks
        mask = full
    blind = seen.counts == 0
    if blind.any():
        mask = mask.masked_fill(blind[:, None, None], 0.0)  # any finite row; thrown away below
    mixed = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.repeat_interleave(group, 0)[None],
        values.repeat_interleave(group, 0)[None],
        attn_mask=mask.transpose(0, 1)[None],
        scale=scale,
    )
    return mixed[0].transpose(0, 1).masked_fill(blind[:, None, None], 0.0)
