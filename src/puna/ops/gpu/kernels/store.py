"""Kernels that set rows of a cache and read them back."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.gpu.kernels.cells import BF16, CODES, Q4_0, Q8_0, Planes
from puna.ops.gpu.kernels.variant import Variant

#: Numbers that a program stores or reads: eight for each thread of four warps, two loads of 16 bytes.
_NUMBERS = 1024
_WARPS = 4


def store_rows(target: Planes, cells: Tensor, rows: Tensor) -> None:
    """Set rows `cells` int32 [T] of `target` to `rows` float32 [T, heads, dim], as `quantized.pack` does.

    Cells are distinct.
    """
    codes, scales, kind = target
    count, size = len(rows), rows[0].numel() if len(rows) else 0
    if size:
        kernel = _store_blocks if kind.is_quantized else _store_numbers
        given = (_bits(codes, kind), *([] if scales is None else [scales.view(torch.int16)]))
        kernel[(count, triton.cdiv(size, _NUMBERS))](
            *given, cells, rows, SIZE=size, KIND=int(kind), NUMBERS=_NUMBERS, num_warps=_WARPS
        )


def load_rows(source: Planes, rows: Tensor) -> Tensor:
    """Return rows `rows` int32 [n] of `source` as float32 [n, heads, dim]."""
    codes, scales, kind = source
    heads, dim = codes.shape[1], codes.shape[2] * (2 if kind is GGMLType.Q4_0 else 1)
    result = torch.empty(len(rows), heads, dim, dtype=torch.float32, device=codes.device)
    if result.numel():
        _load[(len(rows), triton.cdiv(heads * dim, _NUMBERS))](
            _bits(codes, kind), scales, rows, result,
            SIZE=heads * dim, KIND=int(kind), NUMBERS=_NUMBERS, num_warps=_WARPS,
        )  # fmt: skip
    return result


def _bits(codes: Tensor, kind: GGMLType) -> Tensor:
    """Return bfloat16 numbers as int16: they are converted by hand, since the interpreter would not round."""
    return codes.view(torch.int16) if kind is GGMLType.BF16 else codes


@triton.jit
def _store_numbers(codes, cells, rows, SIZE: tl.constexpr, KIND: tl.constexpr, NUMBERS: tl.constexpr):
    """Store NUMBERS of one row of SIZE."""
    row = tl.program_id(0).to(tl.int64)
    cell = tl.load(cells + row).to(tl.int64)
    at = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    numbers = tl.load(rows + row * SIZE + at, at < SIZE)
    if KIND == BF16:
        bits = numbers.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        stored = tl.where(numbers == numbers, rounded, (bits >> 16) | 0x40)
        numbers = stored.to(tl.uint16).to(tl.int16, bitcast=True)
    tl.store(codes + cell * SIZE + at, numbers.to(codes.dtype.element_ty), at < SIZE)


@triton.jit
def _store_blocks(codes, scales, cells, rows, SIZE: tl.constexpr, KIND: tl.constexpr, NUMBERS: tl.constexpr):
    """Quantise NUMBERS of one row of SIZE in blocks of 32; scales are the bits of float16, as int16."""
    row = tl.program_id(0).to(tl.int64)
    cell = tl.load(cells + row).to(tl.int64)
    block = tl.program_id(1) * (NUMBERS // 32) + tl.arange(0, NUMBERS // 32)
    inside = block < SIZE // 32
    half = tl.arange(0, 16)
    at = rows + row * SIZE + block[:, None] * 32 + half[None, :]
    first, second = tl.load(at, inside[:, None], 0.0), tl.load(at + 16, inside[:, None], 0.0)
    high = tl.maximum(tl.max(first, 1), tl.max(second, 1))
    low = tl.minimum(tl.min(first, 1), tl.min(second, 1))
    ordinary = (tl.abs(first) < float("inf")) & (tl.abs(second) < float("inf"))
    finite = tl.min(ordinary.to(tl.int32), 1) != 0
    largest = tl.maximum(high, -low) if KIND == Q8_0 else tl.where(high >= -low, high, low)
    scale = tl.math.div_rn(largest, tl.full(largest.shape, 127.0 if KIND == Q8_0 else -8.0, tl.float32))
    scale = tl.where(finite, tl.minimum(tl.maximum(scale, -65504.0), 65504.0), 0.0).to(tl.float16)
    bits = tl.where(finite, scale.to(tl.int16, bitcast=True), 0x7E00).to(tl.int16)
    tl.store(scales + cell * (SIZE // 32) + block, bits, inside)
    step = scale.to(tl.float32)
    low_codes = _codes_of(first, step, KIND)
    high_codes = _codes_of(second, step, KIND)
    if KIND == Q8_0:
        places = codes + cell * SIZE + block[:, None] * 32 + half[None, :]
        tl.store(places, low_codes.to(tl.int8), inside[:, None])
        tl.store(places + 16, high_codes.to(tl.int8), inside[:, None])
    else:
        places = codes + cell * (SIZE // 2) + block[:, None] * 16 + half[None, :]
        both = (low_codes + 8) | ((high_codes + 8) << 4)
        tl.store(places, both.to(tl.uint8), inside[:, None])


@triton.jit
def _codes_of(numbers, step, KIND: tl.constexpr):
    """Return `numbers` [BLOCKS, n] in steps [BLOCKS], rounded to even; 0 where the step is 0."""
    LOWEST: tl.constexpr = -127.0 if KIND == Q8_0 else -8.0
    HIGHEST: tl.constexpr = 127.0 if KIND == Q8_0 else 7.0
    divisor = tl.broadcast_to(tl.where(step == 0.0, 1.0, step)[:, None], numbers.shape)
    exact = tl.math.div_rn(numbers, divisor)
    # A number that is not finite has a step of 0, like a block of zeros.
    exact = tl.where(step[:, None] == 0.0, 0.0, tl.minimum(tl.maximum(exact, LOWEST), HIGHEST))
    # Adding 1.5 * 2^23 leaves no bits for a fraction: the sum is rounded to an integer, ties to even.
    return ((exact + 12582912.0) - 12582912.0).to(tl.int32)


@triton.jit
def _load(codes, scales, rows, result, SIZE: tl.constexpr, KIND: tl.constexpr, NUMBERS: tl.constexpr):
    """Read NUMBERS of one row of SIZE as float32."""
    row = tl.program_id(0).to(tl.int64)
    cell = tl.load(rows + row).to(tl.int64)
    at = tl.program_id(1) * NUMBERS + tl.arange(0, NUMBERS)
    inside = at < SIZE
    if KIND == Q8_0:
        numbers = tl.load(codes + cell * SIZE + at, inside, 0).to(tl.float32)
    elif KIND == Q4_0:
        pair = tl.load(codes + cell * (SIZE // 2) + at // 32 * 16 + at % 16, inside, 0).to(tl.int32)
        numbers = ((pair >> (at % 32 // 16 * 4)) & 15).to(tl.float32) - 8.0
    elif KIND == BF16:
        bits = tl.load(codes + cell * SIZE + at, inside, 0).to(tl.int32) << 16
        numbers = bits.to(tl.float32, bitcast=True)
    else:
        numbers = tl.load(codes + cell * SIZE + at, inside, 0.0).to(tl.float32)
    if scales is not None:
        numbers *= tl.load(scales + cell * (SIZE // 32) + at // 32, inside, 0.0).to(tl.float32)
    tl.store(result + row * SIZE + at, numbers, inside)


def variants() -> Iterable[Variant]:
    """Yield the kernels' forms for rows of 8 heads of 128."""
    for kind, type in CODES.items():
        constants = {"SIZE": 1024, "KIND": int(kind), "NUMBERS": _NUMBERS}
        names = dict.fromkeys(constants, "constexpr")
        codes = "*i16" if kind is GGMLType.BF16 else type
        scales = {"scales": "*i16"} if kind.is_quantized else {}
        kernel = _store_blocks if kind.is_quantized else _store_numbers
        signature = {"codes": codes, **scales, "cells": "*i32", "rows": "*fp32", **names}
        yield Variant(f"store_rows {kind.name}", kernel, signature, constants, _WARPS)
        scale = "*fp16" if kind.is_quantized else "constexpr"
        signature = {"codes": codes, "scales": scale, "rows": "*i32", "result": "*fp32", **names}
        given = constants if kind.is_quantized else {"scales": None, **constants}
        yield Variant(f"load_rows {kind.name}", _load, signature, given, _WARPS)
