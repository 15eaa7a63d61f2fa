"""What a batch may see as dense tensors and a mask, for attention that takes no index lists.

A cache is not stored for any kernel; a kernel says what it wants with a `DenseConfig` and gets it from any
cache's view: the cells of the batch's sequences, gathered, and which row sees which of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from puna.kvcache.cache import KVView
from puna.ops import kv_shape, kv_unpack


@dataclass(frozen=True)
class DenseConfig:
    """How a backend's kernel wants it; the default is plain."""

    padding: int = 1  # the number of columns is a multiple of this
    batch_padding: int = 1  # and the number of the mask's rows of this; padded rows see nothing
    permuted_values: bool = False  # columns last, as a matrix product wants them
    mask_dtype: torch.dtype = torch.float32
    dtype: torch.dtype = torch.float32  # of keys and values


@dataclass(frozen=True, slots=True)
class DenseView:
    """What `rows` rows see of `columns` cells, in the order the cells lie in."""

    keys: Tensor  # [kv_heads, columns, key_dim]
    values: Tensor  # [kv_heads, columns, value_dim], permuted [kv_heads, value_dim, columns]
    mask: Tensor  # [rows, columns], both padded: 0 where a row sees the cell, -inf elsewhere


def dense_view(view: KVView, config: DenseConfig | None = None) -> DenseView:
    """`view` gathered as `config` says. A column of padding is seen by no row and holds zeros."""
    config = config or DenseConfig()
    capacity, heads, dim = kv_shape(view.keys)
    counts = view.counts.long()
    rows = torch.arange(len(counts)).repeat_interleave(counts)
    ends = counts.cumsum(0)
    entries = torch.arange(len(rows)) + (view.starts.long() - (ends - counts))[rows]
    seen = view.cells[entries].long()
    used = torch.zeros(capacity, dtype=torch.bool)
    used[seen] = True
    cells = used.nonzero()[:, 0]
    column = torch.empty(capacity, dtype=torch.int64)
    column[cells] = torch.arange(len(cells))
    columns = _padded(len(cells), config.padding)
    mask = torch.full(
        (_padded(len(counts), config.batch_padding), columns), -torch.inf, dtype=config.mask_dtype
    )
    mask[rows, column[seen]] = 0
    keys = torch.zeros(heads, columns, dim, dtype=config.dtype)
    keys[:, : len(cells)] = kv_unpack(view.keys[cells]).transpose(0, 1)
    values = torch.zeros(heads, columns, kv_shape(view.values)[2], dtype=config.dtype)
    values[:, : len(cells)] = kv_unpack(view.values[cells]).transpose(0, 1)
    if config.permuted_values:
        values = values.transpose(1, 2).contiguous()
    return DenseView(keys, values, mask)


def _padded(count: int, multiple: int) -> int:
    return max(-(-count // multiple), 1) * multiple
