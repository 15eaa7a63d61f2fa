"""Norms of rows, and other operations by a row's mean or root mean square.

A program holds some whole rows in registers, so that memory is read once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.ops.gpu.kernels.variant import Variant


@dataclass(frozen=True)
class Tile:
    """The rows and columns of a program's tile, powers of two, and its warps."""

    rows: int
    columns: int
    warps: int


def tile_for(width: int) -> Tile:
    """Return the tile for rows of `width` numbers.

    It depends on nothing else: the order of a row's sums follows from it.
    """
    columns = triton.next_power_of_2(width)
    # 1024 numbers, or a row, for each program; a thread has 16, but not more than 1024 threads can be had.
    rows = max(1, 1024 // columns)
    return Tile(rows, columns, min(32, max(1, rows * columns // 512)))


@triton.jit(do_not_specialize=["rows"])
def _norm_kernel(
    x, residual, weight, bias, total, normed, rows, groups, eps,
    CENTRED: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normalise rows [rows, WIDTH]; row r has the weights and biases of group r % groups."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    numbers = tl.load(x + at, inside, 0.0)
    if residual is not None:
        numbers += tl.load(residual + at, inside, 0.0)
        tl.store(total + at, numbers, inside)
    if CENTRED:
        mean = tl.div_rn(tl.sum(numbers, 1), WIDTH)
        numbers = tl.where(inside, numbers - mean[:, None], 0.0)
    square = tl.div_rn(tl.sum(numbers * numbers, 1), WIDTH)
    scale = tl.div_rn(1.0, tl.sqrt_rn(square + eps))
    of_weight = (row % groups)[:, None] * WIDTH + column[None, :]
    numbers = numbers * scale[:, None] * tl.load(weight + of_weight, inside, 0.0)
    if bias is not None:
        numbers += tl.load(bias + of_weight, inside, 0.0)
    tl.store(normed + at, numbers, inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return `x / sqrt(mean(x²) + eps) * weight` of x [..., d].

    weight [d], or [groups, d] if x is [..., groups, d].
    """
    return _normed(x, None, weight, None, eps, centred=False)[1]


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return `x + residual` and its `rms_norm`: x and residual [..., d], weight as there."""
    return _normed(x, residual, weight, None, eps, centred=False)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Return `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`; shapes as in `rms_norm`."""
    return _normed(x, None, weight, bias, eps, centred=True)[1]


def _normed(
    x: Tensor, residual: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float, *, centred: bool
) -> tuple[Tensor, Tensor]:
    """Return the sums of x and the residual (or x), and what they are normalised to."""
    rows, width, tile = _rows_of(x)
    total = x if residual is None else torch.empty_like(x)
    normed = torch.empty_like(x)
    if rows:
        _norm_kernel[(triton.cdiv(rows, tile.rows),)](
            x, residual, weight, bias, total, normed, rows, weight.numel() // width, eps, centred,
            width, tile.rows, tile.columns, num_warps=tile.warps,
        )  # fmt: skip
    return total, normed


@triton.jit(do_not_specialize=["rows"])
def _match_rms_kernel(
    x, like, result, rows, floor, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    numbers = tl.load(x + at, inside, 0.0)
    wanted = tl.load(like + at, inside, 0.0)
    own = tl.div_rn(tl.sum(numbers * numbers, 1), WIDTH)
    own = tl.where(own < floor, floor, own)
    square = tl.div_rn(tl.sum(wanted * wanted, 1), WIDTH)
    scale = tl.sqrt_rn(tl.div_rn(square, own))
    tl.store(result + at, numbers * scale[:, None], inside)


def match_rms(x: Tensor, like: Tensor, floor: float) -> Tensor:
    """Return `x * rms(like) / rms(x)` by rows of x and like [T, n]; mean(x²) is at least `floor`."""
    rows, width, tile = _rows_of(x)
    result = torch.empty_like(x)
    if rows:
        _match_rms_kernel[(triton.cdiv(rows, tile.rows),)](
            x, like, result, rows, floor, width, tile.rows, tile.columns, num_warps=tile.warps
        )
    return result


@triton.jit(do_not_specialize=["rows"])
def _above_kernel(
    x, result, rows, deviations, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < WIDTH)[None, :]
    at = row[:, None] * WIDTH + column[None, :]
    numbers = tl.load(x + at, inside, 0.0)
    mean = tl.div_rn(tl.sum(numbers, 1), WIDTH)
    centred = tl.where(inside, numbers - mean[:, None], 0.0)
    deviation = tl.sqrt_rn(tl.div_rn(tl.sum(centred * centred, 1), WIDTH))
    excess = numbers - (mean + deviations * deviation)[:, None]
    tl.store(result + at, tl.where(excess < 0, 0.0, excess), inside)


def above(x: Tensor, deviations: float) -> Tensor:
    """Return `max(x - (mean + deviations * standard deviation), 0)` by rows of x [T, n]."""
    rows, width, tile = _rows_of(x)
    result = torch.empty_like(x)
    if rows:
        _above_kernel[(triton.cdiv(rows, tile.rows),)](
            x, result, rows, deviations, width, tile.rows, tile.columns, num_warps=tile.warps
        )
    return result


def _rows_of(x: Tensor) -> tuple[int, int, Tile]:
    """Return the number of rows of x [..., width], the width, and the tile for it."""
    width = x.shape[-1]
    return x.numel() // width, width, tile_for(width)


#: Widths of variants: a head, hidden vectors, and feed-forward layers.
_WIDTHS = (128, 2048, 4096, 8192, 16384)


def variants() -> Iterable[Variant]:
    """Return the forms for rows of usual widths."""
    pointers = dict.fromkeys(("x", "residual", "weight", "bias", "total", "normed"), "*fp32")
    shape = dict.fromkeys(("WIDTH", "ROWS", "COLUMNS"), "constexpr")
    for width in _WIDTHS:
        tile = tile_for(width)
        sizes: dict[str, Any] = {"WIDTH": width, "ROWS": tile.rows, "COLUMNS": tile.columns}
        for name, absent in (
            ("rms_norm", ("residual", "bias")),
            ("add_rms_norm", ("bias",)),
            ("layer_norm", ("residual",)),
        ):
            yield Variant(
                f"{name}, {width} wide",
                _norm_kernel,
                {
                    **pointers, **dict.fromkeys(absent, "constexpr"), "rows": "i32", "groups": "constexpr",
                    "eps": "fp32", "CENTRED": "constexpr", **shape,
                },
                {**dict.fromkeys(absent), "groups": 1, "CENTRED": name == "layer_norm", **sizes},
                tile.warps,
            )  # fmt: skip
        yield Variant(
            f"match_rms, {width} wide",
            _match_rms_kernel,
            {"x": "*fp32", "like": "*fp32", "result": "*fp32", "rows": "i32", "floor": "fp32", **shape},
            sizes,
            tile.warps,
        )
        yield Variant(
            f"above, {width} wide",
            _above_kernel,
            {"x": "*fp32", "result": "*fp32", "rows": "i32", "deviations": "fp32", **shape},
            sizes,
            tile.warps,
        )
