"""Rotary positions, by angles that are exact at any position.

A pair turns by `position * frequency` radians. The frequency is kept as a fraction of a turn in units of
2^-64: the product with an integer position, modulo 2^64, is then the angle without whole turns, and is off by
less than 2^-34 of a turn. Float64, which many GPUs compute slowly, is not needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.ops.gpu.kernels import elementary
from puna.ops.gpu.kernels.variant import Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.ops.rope import Rope

#: 2 pi with 100 bits after the point: of a frequency of up to 2^20, the error is far below 2^-64.
_TURN = Fraction(0x6487ED5110B4611A62633145C0, 2**100)


@dataclass(frozen=True)
class Turns:
    """A `Rope` on a device."""

    frequencies: Tensor  # int64 [pairs], in units of 2^-64 of a turn per position
    axes: Tensor | None  # int32 [pairs]
    axis_count: int
    magnitude: float
    neox: bool
    begin: int = 0

    @classmethod
    def of(cls, rope: Rope, device: torch.device) -> Turns:
        """Copy a rotation to the device."""
        axes = None if rope.axes is None else torch.from_numpy(rope.axes).to(device)
        frequencies = torch.from_numpy(turns_of(rope.frequencies)).to(device)
        return cls(frequencies, axes, rope.axis_count, rope.magnitude, rope.neox, rope.begin)


def turns_of(frequencies: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return frequencies, in radians per position, as turns modulo 1 in units of 2^-64: int64, wrapped."""
    turns = [round(Fraction(float(each)) / _TURN * 2**64) % 2**64 for each in frequencies]
    return np.array(turns, np.uint64).view(np.int64)


@triton.jit
def _rope_kernel(
    x, positions, frequencies, axes, heads, width, first, magnitude,
    AXES: tl.constexpr, NEOX: tl.constexpr, PAIRS: tl.constexpr, HEADS_TILE: tl.constexpr,
    PAIRS_TILE: tl.constexpr,
):  # fmt: skip
    """Rotate values of some heads of a row of x [T, heads, width], from `first` on, by AXES positions."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_TILE + tl.arange(0, HEADS_TILE)
    pair = tl.arange(0, PAIRS_TILE)
    here = pair < PAIRS
    if AXES == 1:
        position = tl.load(positions + row).to(tl.int64)
    else:
        axis = tl.load(axes + pair, here, 0)
        position = tl.load(positions + row * AXES + axis, here, 0).to(tl.int64)
    cosine, sine = elementary.cos_sin(position * tl.load(frequencies + pair, here, 0))
    cosine, sine = (cosine * magnitude)[None, :], (sine * magnitude)[None, :]
    begin = x + (row * heads + head[:, None]) * width + first
    if NEOX:
        inside = (head < heads)[:, None] & here[None, :]
        left, right = begin + pair[None, :], begin + PAIRS + pair[None, :]
        first, second = tl.load(left, inside, 0.0), tl.load(right, inside, 0.0)
        tl.store(left, first * cosine - second * sine, inside)
        tl.store(right, first * sine + second * cosine, inside)
    else:
        column = tl.arange(0, 2 * PAIRS_TILE)
        inside = (head < heads)[:, None] & (column < 2 * PAIRS)[None, :]
        both = begin + column[None, :]
        first, second = tl.split(tl.load(both, inside, 0.0).reshape(HEADS_TILE, PAIRS_TILE, 2))
        turned = tl.join(first * cosine - second * sine, first * sine + second * cosine)
        tl.store(both, turned.reshape(HEADS_TILE, 2 * PAIRS_TILE), inside)


@dataclass(frozen=True)
class Tile:
    """The heads and pairs of a program's tile, powers of two, and its warps."""

    heads: int
    pairs: int
    warps: int = 4


def tile_for(heads: int, pairs: int) -> Tile:
    """Return the tile for rows of `heads`: up to 2048 pairs, 16 for each thread."""
    wide = triton.next_power_of_2(pairs)
    return Tile(min(triton.next_power_of_2(heads), max(1, 2048 // wide)), wide)


def rope_(x: Tensor, positions: Tensor, turns: Turns) -> None:
    """Rotate the heads of x [T, heads, head_dim] in place: positions int32 [T], or [T, axes]."""
    if not x.numel():
        return
    rows, heads, width = x.shape
    pairs = len(turns.frequencies)
    tile = tile_for(heads, pairs)
    axes = 1 if positions.dim() == 1 else positions.shape[1]
    _rope_kernel[(rows, triton.cdiv(heads, tile.heads))](
        x, positions, turns.frequencies, None if axes == 1 else turns.axes, heads, width, turns.begin,
        turns.magnitude, axes, turns.neox, pairs, tile.heads, tile.pairs, num_warps=tile.warps,
    )  # fmt: skip


def variants() -> Iterable[Variant]:
    """Return the forms for usual heads: with one position or three, and both orders of pairs."""
    for heads, pairs in ((8, 64), (32, 64), (64, 32)):
        tile = tile_for(heads, pairs)
        for axes in (1, 3):
            for neox in (False, True):
                constants = {
                    "AXES": axes, "NEOX": neox, "PAIRS": pairs, "HEADS_TILE": tile.heads,
                    "PAIRS_TILE": tile.pairs,
                }  # fmt: skip
                order = "halves" if neox else "neighbours"
                yield Variant(
                    f"rope, {heads} heads of {pairs} pairs ({order}), axes: {axes}",
                    _rope_kernel,
                    {
                        "x": "*fp32", "positions": "*i32", "frequencies": "*i64",
                        "axes": "constexpr" if axes == 1 else "*i32", "heads": "i32", "width": "i32",
                        "first": "i32", "magnitude": "fp32", **dict.fromkeys(constants, "constexpr"),
                    },
                    constants | ({"axes": None} if axes == 1 else {}),
                    tile.warps,
                )  # fmt: skip
