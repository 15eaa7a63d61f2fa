"""Groups of a cache's cells, pooled to one entry each."""

from __future__ import annotations

from collections.abc import Iterable

import triton
import triton.language as tl
from torch import Tensor

from puna.ops.gpu.kernels import elementary
from puna.ops.gpu.kernels.variant import Variant

#: Gates of a program's tile: 32 for each thread of four warps.
_GATES = 4096
_WARPS = 4


@triton.jit
def _pool_kernel(
    stored, cells, starts, counts, bias, entries,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, DIM: tl.constexpr, SIZE_TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """Pool COLUMNS columns of the group of a row, of cells [capacity, 2 * WIDTH], to entries [T, DIM]."""
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + row)
    complete = (count == GROUP) | ((DIM < WIDTH) & (count == 2 * GROUP))
    place = tl.arange(0, SIZE_TILE)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    listed = complete & (place < count)
    cell = tl.load(cells + tl.load(starts + row) + place, listed, 0).to(tl.int64)
    at = tl.where(place >= count - GROUP, WIDTH - DIM, 0)[:, None] + column[None, :]
    inside = listed[:, None] & (column < DIM)[None, :]
    begin = stored + cell[:, None] * (2 * WIDTH) + at
    added = tl.load(bias + (place % GROUP)[:, None] * WIDTH + at, inside, 0.0)
    gates = tl.where(inside, tl.load(begin + WIDTH, inside, 0.0) + added, float("-inf"))
    shares = tl.where(inside, elementary.exp(gates - tl.max(gates, 0)[None, :]), 0.0)
    pooled = tl.div_rn(tl.sum(shares * tl.load(begin, inside, 0.0), 0), tl.sum(shares, 0))
    tl.store(entries + row * DIM + column, tl.where(complete, pooled, 0.0), column < DIM)


def _tile_of(size: int, dim: int) -> tuple[int, int]:
    """Return the tile's cells and columns for groups of up to `size` cells, as powers of two."""
    cells = triton.next_power_of_2(size)
    return cells, min(triton.next_power_of_2(dim), max(1, _GATES // cells))


def pool_groups(
    stored: Tensor, cells: Tensor, starts: Tensor, counts: Tensor, bias: Tensor, *, overlapping: bool = False
) -> Tensor:
    """Pool each row's group of cells of `stored` float32 [capacity, 1, 2 * width] (see `Backend`)."""
    group, width = bias.shape
    size, dim = (2 * group, width // 2) if overlapping else (group, width)
    entries = bias.new_empty(len(counts), dim)
    if entries.numel():
        tile = _tile_of(size, dim)
        _pool_kernel[(len(counts), triton.cdiv(dim, tile[1]))](
            stored, cells, starts, counts, bias, entries, group, width, dim, *tile, num_warps=_WARPS
        )
    return entries


def variants() -> Iterable[Variant]:
    """Return the forms for the groups of DeepSeek V4, of an indexer's keys too."""
    for group, dim, overlapping in ((4, 512, True), (4, 128, True), (128, 512, False)):
        size, width = (2 * group, 2 * dim) if overlapping else (group, dim)
        size_tile, columns = _tile_of(size, dim)
        constants = {
            "GROUP": group, "WIDTH": width, "DIM": dim, "SIZE_TILE": size_tile, "COLUMNS": columns
        }  # fmt: skip
        yield Variant(
            f"pool_groups, {dim} columns of {size} cells",
            _pool_kernel,
            {
                "stored": "*fp32", "cells": "*i32", "starts": "*i32", "counts": "*i32", "bias": "*fp32",
                "entries": "*fp32", **dict.fromkeys(constants, "constexpr"),
            },
            constants,
            _WARPS,
        )  # fmt: skip
