"""Cells of a cache: tiles of their numbers, read in the types that tensor cores multiply."""

from __future__ import annotations

from typing import TypeAlias

import triton
import triton.language as tl
from torch import Tensor

from puna.gguf import GGMLType

#: Codes [cells, heads, n] and the scales of their blocks, as `DeviceStorage` holds them, and their type.
Planes: TypeAlias = tuple[Tensor, Tensor | None, GGMLType]

F32 = tl.constexpr(int(GGMLType.F32))
BF16 = tl.constexpr(int(GGMLType.BF16))
Q8_0 = tl.constexpr(int(GGMLType.Q8_0))
Q4_0 = tl.constexpr(int(GGMLType.Q4_0))

#: The types of the codes, in signatures.
CODES = {
    GGMLType.F32: "*fp32",
    GGMLType.F16: "*fp16",
    GGMLType.BF16: "*bf16",
    GGMLType.Q8_0: "*i8",
    GGMLType.Q4_0: "*u8",
}


@triton.jit
def number_at(column, KIND: tl.constexpr):
    """Return which number of a head a tile has in `column`.

    The two codes of a Q4_0 byte, numbers i and i + 16 of a block, are neighbours in a tile: sums over a head
    may have any order, and moving them apart costs more than reading the other factor in this one.
    """
    if KIND == Q4_0:
        column = column // 32 * 32 + column % 2 * 16 + column % 32 // 2
    return column


@triton.jit
def read_tile(
    codes,
    scales,
    cells,  # int64 [CELLS]
    listed,  # [CELLS]: the others are zeros
    head,
    KIND: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BEGIN: tl.constexpr,
    WIDTH: tl.constexpr,
    CELLS: tl.constexpr,
    COLUMNS: tl.constexpr,  # a power of two, at least WIDTH
    WIDEN: tl.constexpr,  # bfloat16 as float32, for the interpreter
):
    """Return numbers [BEGIN, BEGIN + WIDTH) of a head of each cell, and zeros: [CELLS, COLUMNS].

    They are float32, bfloat16 or float16; quantised numbers are rounded to float16.
    """
    if KIND == Q8_0 or KIND == Q4_0:  # noqa: SIM109 - kernels know no tuples of constants
        BLOCKS: tl.constexpr = COLUMNS // 32
        blocks = tl.arange(0, BLOCKS)
        at = (cells * HEADS + head)[:, None] * (DIM // 32) + (BEGIN // 32 + blocks)[None, :]
        inside = listed[:, None] & (blocks < WIDTH // 32)[None, :]
        scale = tl.load(scales + at, inside, 0.0)
        if KIND == Q8_0:
            places = at[:, :, None] * 32 + tl.arange(0, 32)[None, None, :]
            numbers = tl.load(codes + places, inside[:, :, None], 0).to(tl.float16)
            numbers = tl.reshape(numbers, [CELLS, COLUMNS])
        else:
            places = at[:, :, None] * 16 + tl.arange(0, 16)[None, None, :]
            pairs = tl.load(codes + places, inside[:, :, None], 0)
            numbers = tl.join((pairs & 15).to(tl.float16), (pairs >> 4).to(tl.float16))
            numbers = (tl.reshape(numbers, [CELLS, COLUMNS]) - 8.0).to(tl.float16)
        # After reshaping: Triton 3.6 fails where a reshaped tile is multiplied directly.
        scale = tl.broadcast_to(scale[:, :, None], [CELLS, BLOCKS, 32])
        numbers *= tl.reshape(scale, [CELLS, COLUMNS])
    else:
        columns = tl.arange(0, COLUMNS)
        at = (cells * HEADS + head)[:, None] * DIM + (BEGIN + columns)[None, :]
        numbers = tl.load(codes + at, listed[:, None] & (columns < WIDTH)[None, :], 0.0)
        if KIND == BF16 and WIDEN:
            numbers = numbers.to(tl.float32)
    return numbers
