"""Attention by torch's scaled_dot_product_attention, over a dense view of a cache."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad, scaled_dot_product_attention

from puna.kvcache.cache import KVView
from puna.ops import Array
from tests.kvcache.probe import OPS


@dataclass(frozen=True)
class DenseView:
    """Visible cells of `rows` rows among `columns` cells, in storage order."""

    keys: torch.Tensor  # [kv_heads, columns, key_dim]
    values: torch.Tensor  # [kv_heads, columns, value_dim]
    mask: torch.Tensor  # [rows, columns]: 0 where a row sees the cell, -inf elsewhere


def dense_view(view: KVView) -> DenseView:
    """Return the visible cells as one tensor with a mask, without cells that no row sees."""
    table, starts, counts = (
        torch.from_numpy(OPS.numpy(a)).long() for a in (view.cells, view.starts, view.counts)
    )
    seen = [
        table[start : start + count] for start, count in zip(starts.tolist(), counts.tolist(), strict=True)
    ]
    cells = torch.cat(seen).unique()
    mask = torch.full((len(seen), len(cells)), -torch.inf)
    for row, listed in enumerate(seen):
        mask[row, torch.searchsorted(cells, listed)] = 0
    keys, values = (
        torch.from_numpy(OPS.numpy(part.numbers(cells.numpy()))).transpose(0, 1)
        for part in (view.keys, view.values)
    )
    return DenseView(keys, values, mask)


def sdpa(query: Array, seen: KVView, scale: float, sinks: Array | None = None) -> torch.Tensor:
    """Return `attention`, up to rounding: [rows, heads, value_dim]; zeros without visible cells."""
    view = dense_view(seen)
    keys, values, mask = view.keys, view.values, view.mask[:, None, :]  # [kv_heads, columns, ...]
    numbers = torch.from_numpy(OPS.numpy(query))
    rows, heads, _ = numbers.shape
    group = heads // len(keys)
    if sinks is not None:  # one more logit per head that takes a share and adds nothing
        columns = keys.shape[1]
        keys, values = pad(keys, (0, 0, 0, 1)), pad(values, (0, 0, 0, 1))
        full = torch.empty(rows, heads, columns + 1)
        full[..., :columns] = mask
        full[..., columns] = torch.from_numpy(OPS.numpy(sinks))
        mask = full
    blind = torch.from_numpy(OPS.numpy(seen.counts) == 0)[:, None, None]
    mask = mask.masked_fill(blind, 0.0)  # any finite row; discarded below
    mixed = scaled_dot_product_attention(
        numbers.transpose(0, 1)[None],
        keys.repeat_interleave(group, 0)[None],
        values.repeat_interleave(group, 0)[None],
        attn_mask=mask.transpose(0, 1)[None],
        scale=scale,
    )
    return mixed[0].transpose(0, 1).masked_fill(blind, 0.0)
