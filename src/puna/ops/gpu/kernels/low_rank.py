"""Low-rank adapters: what the adapters of each row add to a product.

The adapters of a matrix lie one after another in a stack. Blocks of up to 16 ranks belong to one adapter; a
program skips the blocks whose adapter no row of its tile uses, so that adapters cost what rows use of them.
Two launches add all of them: the first multiplies rows by the narrow matrices (`_narrow...`), the second the
results by the wide ones, and adds these to the product (`_widen...`). Weights are float32, as are sums.

As with products, a row's result is the same bits whatever else is in the batch, on the same side of
`FEW_ROWS`. Few rows are computed one by one, and programs share their columns; many in tiles, by tensor cores
that take a float32 number as three parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.ops.gpu.kernels.formats import INTERPRETED
from puna.ops.gpu.kernels.matmul import FEW_ROWS
from puna.ops.gpu.kernels.variant import Variant

#: Ranks in a block: the least that tensor cores multiply.
_RANKS = 16
#: Columns that a program of `_narrow_few` multiplies, and at a time. 4096 columns make 8 programs a block.
_SPLIT = 512
_COLUMNS = 128
#: Outputs of a program of `_widen_few`.
_FEW_OUT = 128
#: Rows and columns of a tile of `_narrow_many`: 2048 rows make a program for each multiprocessor.
_NARROW_ROWS = 16
_NARROW_COLUMNS = 64
#: Rows and outputs of a tile of `_widen_many`.
_WIDE_ROWS = 32
_WIDE_OUT = 128


@dataclass(frozen=True)
class LowRankStack:
    """The adapters of a matrix [out, in], their ranks one after another."""

    down: Tensor  # float32 [ranks, in]
    up: Tensor  # float32 [ranks, out]
    blocks: Tensor  # int32 [blocks, 3]: the adapter's number, the first rank, and how many ranks
    parts: int  # adapters in it

    @classmethod
    def of(cls, adapter: int, a: Tensor, b: Tensor, below: LowRankStack | None = None) -> LowRankStack:
        """Put adapter number `adapter` on a stack: a float32 [rank, in], b float32 [out, rank]."""
        first = 0 if below is None else len(below.down)
        blocks = torch.tensor(
            [(adapter, first + begin, min(_RANKS, len(a) - begin)) for begin in range(0, len(a), _RANKS)],
            dtype=torch.int32,
            device=a.device,
        ).view(-1, 3)
        own = cls(a, b.t().contiguous(), blocks, 1)
        if below is None:
            return own
        return cls(
            torch.cat([below.down, own.down]),
            torch.cat([below.up, own.up]),
            torch.cat([below.blocks, own.blocks]),
            below.parts + 1,
        )


def add_low_rank(y: Tensor, x: Tensor, stack: LowRankStack, scales: Tensor) -> Tensor:
    """Return `y` [T, out], which it changes, plus what adapters add for `x` [T, in].

    scales float32 [T, adapters], by the adapters' numbers; see `Backend.add_low_rank`.
    """
    rows, columns = x.shape
    blocks, outs = len(stack.blocks), y.shape[1]
    if not y.numel() or not blocks:
        return y
    few = rows <= FEW_ROWS
    shared = max(1, -(-columns // _SPLIT)) if few else 1
    narrow = torch.empty((shared, rows, blocks * _RANKS), device=x.device)
    given = (stack.blocks, scales, scales.shape[1])
    precision = "tf32x3" if x.is_cuda and torch.version.hip is None else "ieee"
    if few:
        _narrow_few[(blocks, shared, rows)](
            x, stack.down, *given, narrow, rows, columns, blocks, RANKS=_RANKS, SPLIT=_SPLIT,
            COLUMNS=_COLUMNS, num_warps=4,
        )  # fmt: skip
        _widen_few[(-(-outs // _FEW_OUT), rows)](
            narrow, stack.up, *given, y, rows, outs, blocks, shared, RANKS=_RANKS, N=_FEW_OUT, num_warps=4
        )
    else:
        _narrow_many[(blocks, -(-rows // _NARROW_ROWS))](
            x, stack.down, *given, narrow, rows, columns, blocks, RANKS=_RANKS, M=_NARROW_ROWS,
            K=_NARROW_COLUMNS, PRECISION=precision, num_warps=4,
        )  # fmt: skip
        _widen_many[(-(-outs // _WIDE_OUT), -(-rows // _WIDE_ROWS))](
            narrow, stack.up, *given, y, rows, outs, blocks, RANKS=_RANKS, M=_WIDE_ROWS, N=_WIDE_OUT,
            PRECISION=precision, num_warps=4,
        )  # fmt: skip
    return y


@triton.jit
def _block_of(blocks, index, RANKS: tl.constexpr):
    """Return the adapter of a block, its ranks [RANKS], and which of these there are."""
    adapter = tl.load(blocks + 3 * index)
    r = tl.arange(0, RANKS)
    return adapter, tl.load(blocks + 3 * index + 1) + r, r < tl.load(blocks + 3 * index + 2)


@triton.jit
def _dot(a, b, total, PRECISION: tl.constexpr):
    """Return `a @ b + total` of float32 tiles; numpy orders float32 sums by the sizes of tiles."""
    if INTERPRETED:
        product = tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64)
        total += product.to(tl.float32)
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def _narrow_few(
    x, down, blocks, scales, adapters, narrow, rows, columns, count,
    RANKS: tl.constexpr, SPLIT: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Multiply SPLIT columns of a row by the ranks of a block. Rows that do not use it are left out."""
    block, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    adapter, ranks, present = _block_of(blocks, block, RANKS)
    if tl.load(scales + row * adapters + adapter) != 0.0:
        total = tl.zeros([RANKS, COLUMNS], tl.float32)
        for begin in range(0, SPLIT, COLUMNS):
            at = split * SPLIT + begin + tl.arange(0, COLUMNS)
            inside = at < columns
            place = ranks.to(tl.int64)[:, None] * columns + at[None, :]
            weights = tl.load(down + place, mask=present[:, None] & inside[None, :], other=0.0)
            total += weights * tl.load(x + row * columns + at, mask=inside, other=0.0)[None, :]
        sums = tl.sum(total, axis=1)
        target = (split * rows + row) * (count * RANKS) + block * RANKS + tl.arange(0, RANKS)
        tl.store(narrow + target, sums)


@triton.jit
def _widen_few(
    narrow, up, blocks, scales, adapters, y, rows, outs, count, splits, RANKS: tl.constexpr, N: tl.constexpr
):
    """Add to N outputs of a row what its adapters add."""
    n = tl.program_id(0) * N + tl.arange(0, N)
    row = tl.program_id(1).to(tl.int64)
    width = count * RANKS
    total = tl.zeros([N], tl.float32)
    used = False
    for block in range(count):
        adapter, ranks, present = _block_of(blocks, block, RANKS)
        scale = tl.load(scales + row * adapters + adapter)
        if scale != 0.0:
            used = True
            sums = tl.zeros([RANKS], tl.float32)
            for split in range(splits):
                sums += tl.load(narrow + (split * rows + row) * width + block * RANKS + tl.arange(0, RANKS))
            place = ranks.to(tl.int64)[:, None] * outs + n[None, :]
            weights = tl.load(up + place, mask=present[:, None] & (n < outs)[None, :], other=0.0)
            total += tl.sum(weights * (sums * scale)[:, None], axis=0)
    mask = (n < outs) & used
    tl.store(y + row * outs + n, tl.load(y + row * outs + n, mask=mask) + total, mask=mask)


@triton.jit
def _narrow_many(
    x, down, blocks, scales, adapters, narrow, rows, columns, count,
    RANKS: tl.constexpr, M: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Multiply M rows by the ranks of a block, if any of the rows uses it."""
    block = tl.program_id(0)
    m = (tl.program_id(1) * M + tl.arange(0, M)).to(tl.int64)
    adapter, ranks, present = _block_of(blocks, block, RANKS)
    scale = tl.load(scales + m * adapters + adapter, mask=m < rows, other=0.0)
    if tl.max(tl.abs(scale), axis=0) > 0.0:
        total = tl.zeros([RANKS, M], tl.float32)
        k = tl.arange(0, K)
        for begin in range(0, columns, K):
            inside = begin + k < columns
            place = ranks.to(tl.int64)[:, None] * columns + begin + k[None, :]
            weights = tl.load(down + place, mask=present[:, None] & inside[None, :], other=0.0)
            place = m[None, :] * columns + begin + k[:, None]
            given = tl.load(x + place, mask=inside[:, None] & (m < rows)[None, :], other=0.0)
            total = _dot(weights, given, total, PRECISION)
        target = m[None, :] * (count * RANKS) + block * RANKS + tl.arange(0, RANKS)[:, None]
        tl.store(narrow + target, total, mask=(m < rows)[None, :])


@triton.jit
def _widen_many(
    narrow, up, blocks, scales, adapters, y, rows, outs, count,
    RANKS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add to N outputs of M rows what their adapters add."""
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = (tl.program_id(1) * M + tl.arange(0, M)).to(tl.int64)
    total = tl.zeros([M, N], tl.float32)
    used = tl.zeros([M], tl.int32)
    for block in range(count):
        adapter, ranks, present = _block_of(blocks, block, RANKS)
        scale = tl.load(scales + m * adapters + adapter, mask=m < rows, other=0.0)
        if tl.max(tl.abs(scale), axis=0) > 0.0:
            used = used | (scale != 0.0).to(tl.int32)
            # Rows that do not use the block may have anything there.
            place = m[:, None] * (count * RANKS) + block * RANKS + tl.arange(0, RANKS)[None, :]
            sums = tl.load(narrow + place, mask=(scale != 0.0)[:, None], other=0.0) * scale[:, None]
            place = ranks.to(tl.int64)[:, None] * outs + n[None, :]
            weights = tl.load(up + place, mask=present[:, None] & (n < outs)[None, :], other=0.0)
            total = _dot(sums, weights, total, PRECISION)
    place = m[:, None] * outs + n[None, :]
    mask = (used != 0)[:, None] & (n < outs)[None, :]
    tl.store(y + place, tl.load(y + place, mask=mask) + total, mask=mask)


def variants() -> Iterable[Variant]:
    """Yield the forms of the kernels."""
    few = {"RANKS": _RANKS, "SPLIT": _SPLIT, "COLUMNS": _COLUMNS}
    yield _variant("narrow few", _narrow_few, few)
    yield _variant("widen few", _widen_few, {"RANKS": _RANKS, "N": _FEW_OUT})
    for precision, targets in (("tf32x3", ("sm_80", "sm_90", "sm_100")), ("ieee", ("gfx942", "gfx1100"))):
        same = {"RANKS": _RANKS, "PRECISION": precision}
        narrow = {**same, "M": _NARROW_ROWS, "K": _NARROW_COLUMNS}
        yield _variant(f"narrow many {precision}", _narrow_many, narrow, targets)
        wide = {**same, "M": _WIDE_ROWS, "N": _WIDE_OUT}
        yield _variant(f"widen many {precision}", _widen_many, wide, targets)


def _variant(name: str, kernel: Any, constants: dict[str, Any], targets: tuple[str, ...] = ()) -> Variant:
    signature = {
        argument: "constexpr" if argument.isupper() else {"blocks": "*i32"}.get(argument, "*fp32")
        for argument in kernel.arg_names
    }
    signature |= dict.fromkeys(
        {"adapters", "rows", "columns", "outs", "count", "splits"} & set(signature), "i32"
    )
    return Variant(name, kernel, signature, constants, 4, targets=targets)
