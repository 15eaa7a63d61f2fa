"""Products with packed matrices: `x @ weight.T`, for few rows bound by memory, for many by tensor cores.

Three kernels compute products of 16-bit tiles, with sums in float32:

- `_few_rows`, up to 16 rows: each warp multiplies the chunks of its own share of the columns, so that a few
  rows of weights keep a multiprocessor busy. If a matrix has too few rows even so, programs share the
  columns, too, and `_add_parts` adds their sums in order.
- `_many_rows`, up to 256 rows: unpacks tiles of weights on the way to the tensor cores. Here, too, programs
  share the columns of a matrix with few rows.
- `_dense`, from there on: multiplies a matrix that `unpack_matrix` has written as float16, since each weight
  would be unpacked for every tile of rows otherwise.

Activations are rounded to float16, after a division of each row by a power of two that brings its largest
magnitude near float16's (`prepare`). A row that has a NaN or an infinity gives only NaN. For BF16 weights,
whose range float16 lacks, activations are sums of two bfloat16 numbers. F32 weights are multiplied in
float32 (`_exact_few_rows`, `_exact_many_rows`).

A row's result is the same bits whatever else is in the batch, as long as the batch stays on the same side of
`FEW_ROWS` and `UNPACKED_ROWS`: nothing else that orders the sum over columns depends on the number of rows.

With `ExpertGroups`, a matrix is a stack of experts, and each tile of rows is multiplied by one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from puna.gguf import GGMLType
from puna.ops.gpu.kernels.formats import INTERPRETED, tile, tiles_in_chunk
from puna.ops.gpu.kernels.tiles import TILES, FewTiles, ManyTiles, Tiles, tiles_for
from puna.ops.gpu.kernels.variant import Variant
from puna.ops.gpu.packed import FORMATS, PackedMatrix

#: Batches of up to so many rows are bound by memory.
FEW_ROWS = 16
#: Up to so many rows, unpacking tiles costs less than writing the whole matrix as float16 and reading it.
UNPACKED_ROWS = 256
#: Rows of activations are padded to whole chunks of every format.
_COLUMNS = 256
#: Weights unpacked at a time: 128 MiB of float16, of a multiple of so many rows.
_UNPACKED_WEIGHTS = 1 << 26
_STEP_ROWS = 128


@dataclass(frozen=True)
class PreparedRows:
    """Rows of activations in the form that products with a type of weights take.

    `values` float16 [rows, width], to be multiplied by the powers of two `factors` [rows]; or bfloat16 [2,
    rows, width], the sums of which are the activations; or float32 [rows, columns], as they were.
    """

    values: Tensor
    factors: Tensor
    rows: int
    columns: int

    @classmethod
    def empty(cls, rows: int, columns: int, form: torch.dtype, device: torch.device) -> PreparedRows:
        """Return room for rows in a form, padded to whole chunks in those of 16 bits."""
        width = columns if form is torch.float32 else -(-columns // _COLUMNS) * _COLUMNS
        parts = (2,) if form is torch.bfloat16 else ()
        values = torch.empty((*parts, rows, width), dtype=form, device=device)
        return cls(values, torch.empty(rows, device=device), rows, columns)

    @property
    def width(self) -> int:
        """The distance between rows."""
        return self.values.shape[-1]


@dataclass(frozen=True)
class ExpertGroups:
    """Pairs of a token and an expert, in tiles that have one expert each.

    The result of a product has a row for each pair. Pairs are numbered by tokens: `share` of them have the
    same row of activations.
    """

    chosen: Tensor  # int32 [pairs]: their experts
    pairs: Tensor  # int32 [pairs]: their numbers, those of an expert beside each other
    tiles: (
        Tensor  # int32 [tiles, 3]: expert, first of its entries in `pairs`, their number; 0 in unused tiles
    )
    size: int  # pairs in a tile, at most
    share: int
    experts: int
    few: bool  # tokens are at most `FEW_ROWS`
    scale: Tensor | None = None  # float32 [pairs]: multiplies the activations


def form_of(type: GGMLType) -> torch.dtype:
    """Return the type of activations that a matrix of `type` is multiplied by."""
    return {GGMLType.F32: torch.float32, GGMLType.BF16: torch.bfloat16}.get(type, torch.float16)


def prepare(x: Tensor, form: torch.dtype) -> PreparedRows:
    """Return rows `x` [T, columns] in a form (see `PreparedRows` and `form_of`)."""
    rows, columns = x.shape
    if form is torch.float32:
        return PreparedRows(x, x, rows, columns)
    prepared = PreparedRows.empty(rows, columns, form, x.device)
    width = prepared.width
    if rows and width:
        block = min(triton.next_power_of_2(width), _PREPARED_COLUMNS)
        _prepare[(rows,)](
            x, prepared.values, prepared.factors, rows, columns, width, HALF=form is torch.float16,
            BLOCK=block, num_warps=8,
        )  # fmt: skip
    return prepared


#: Columns that a program of `_prepare` holds in registers.
_PREPARED_COLUMNS = 16384


def linear(x: Tensor, weight: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias`: x float32 [T, columns], bias float32 [rows], result [T, rows]."""
    return multiply(prepare(x, form_of(weight.type)), weight, bias)


def linear_many(
    x: Tensor, weights: Sequence[PackedMatrix], biases: Sequence[Tensor | None] | None = None
) -> list[Tensor]:
    """Return `linear` of the same x with each of `weights`, preparing x once for each form."""
    forms: dict[torch.dtype, PreparedRows] = {}
    results = []
    for weight, bias in zip(weights, biases or [None] * len(weights), strict=True):
        form = form_of(weight.type)
        if form not in forms:
            forms[form] = prepare(x, form)
        results.append(multiply(forms[form], weight, bias))
    return results


def linear_heads(x: Tensor, weights: Sequence[PackedMatrix]) -> Tensor:
    """Return `linear` of each head: x float32 [T, heads, columns], a matrix for each, [T, heads, rows]."""
    heads = [linear(x[:, head].contiguous(), weight) for head, weight in enumerate(weights)]
    return torch.stack(heads, dim=1)


def multiply(
    x: PreparedRows, weight: PackedMatrix, bias: Tensor | None = None, groups: ExpertGroups | None = None
) -> Tensor:
    """Return the product of prepared rows [T, columns] and a matrix, plus `bias`: float32 [T, rows].

    With groups, the result is [pairs, rows / experts], and bias [experts, rows / experts].
    """
    rows = weight.rows if groups is None else weight.rows // groups.experts
    count = x.rows if groups is None else len(groups.pairs)
    out = torch.empty((count, rows), device=x.values.device)
    if not out.numel():
        return out
    if not weight.columns:
        return out.copy_(torch.zeros_like(out) if bias is None else bias)
    few = x.rows <= FEW_ROWS if groups is None else groups.few
    if weight.type is GGMLType.F32:
        _multiply_exactly(x, weight, bias, out, groups, few)
    elif few:
        _multiply_few(x, weight, bias, out, groups)
    elif groups is not None or (weight.format.bits < 16 and x.rows <= UNPACKED_ROWS):
        _multiply_many(x, weight, bias, out, groups)
    elif weight.format.bits < 16:
        step = max(_STEP_ROWS, _UNPACKED_WEIGHTS // x.width // _STEP_ROWS * _STEP_ROWS)
        for begin in range(0, weight.rows, step):
            end = min(begin + step, weight.rows)
            _multiply_dense(x, weight, unpack_matrix(weight, begin, end), bias, out, begin)
    else:
        _multiply_dense(x, weight, weight.codes, bias, out, 0)
    return out


def unpack_rows(weight: PackedMatrix, tokens: Tensor) -> Tensor:
    """Return the rows `tokens` int32 [T] of a matrix, as float32 [T, columns]."""
    out = torch.empty((len(tokens), weight.columns), device=tokens.device)
    if out.numel() and weight.format.bits >= 16:
        out.copy_(weight.codes.index_select(0, tokens)[:, : weight.columns])
    elif out.numel():
        _unpack[(len(tokens), weight.chunks)](
            *weight.planes(), tokens, out, 0, len(tokens), weight.rows, weight.chunks, weight.columns,
            weight.columns, GATHERED=True, ROWS=1, OUT=tl.float32, **_constants(weight), num_warps=1,
        )  # fmt: skip
    return out


def unpack_matrix(weight: PackedMatrix, begin: int, end: int) -> Tensor:
    """Return rows of a quantised matrix as float16 [end - begin, width], to be multiplied by its factors.

    The width is that of prepared activations.
    """
    width = -(-weight.columns // _COLUMNS) * _COLUMNS
    chunk = weight.format.chunk
    out = torch.empty((end - begin, width), dtype=torch.float16, device=weight.codes.device)
    if width > weight.chunks * chunk:
        out[:, weight.chunks * chunk :] = 0
    _unpack[(-(-(end - begin) // _UNPACKED_MATRIX_ROWS), weight.chunks)](
        *weight.planes(), weight.codes, out, begin, end - begin, weight.rows, weight.chunks, width, width,
        GATHERED=False, ROWS=_UNPACKED_MATRIX_ROWS, OUT=tl.float16, **_constants(weight), num_warps=4,
    )  # fmt: skip
    return out


#: Rows that a program of `_unpack` unpacks a chunk of.
_UNPACKED_MATRIX_ROWS = 32


def _constants(weight: PackedMatrix) -> dict[str, Any]:
    form = weight.format
    ptx = weight.codes.is_cuda and torch.version.hip is None
    return {"BITS": form.bits, "SCALES": form.scales, "LEVELS": form.levels, "PTX": ptx}


def few_tokens(rows: int, device: torch.device) -> int:
    """Return the rows of a tile for up to `FEW_ROWS` rows of x."""
    return max(tiles_for(device).few_tokens, 8 if rows <= 8 else 16)


def splits(rows: int, steps: int, tiles: FewTiles | ManyTiles, matrices: int = 1) -> int:
    """Return the programs that share a row's columns, where so many matrices [rows, columns] are read.

    Each has one of `steps` of the columns at least.
    """
    wanted = tiles.programs // max(1, -(-rows // tiles.rows) * matrices)
    return max(1, min(wanted, tiles.max_splits, steps))


def _add_up(parts: Tensor, out: Tensor) -> None:
    """Write the sums of parts [splits, ...] to `out`, which may be the only part."""
    if parts.data_ptr() != out.data_ptr():
        _add_parts[(-(-out.numel() // _ADDED),)](
            parts, out, out.numel(), SPLITS=len(parts), BLOCK=_ADDED, num_warps=4
        )


def _parts_of(out: Tensor, splits: int) -> Tensor:
    """Return room for as many parts of the sums `out`: their own, if that is enough."""
    return out[None] if splits == 1 else torch.empty((splits, *out.shape), device=out.device)


def _grouped(groups: ExpertGroups | None, unused: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Return the arguments of kernels for groups."""
    if groups is None:
        return unused, unused, unused, 1
    return groups.pairs, groups.tiles, unused if groups.scale is None else groups.scale, groups.share


def _group_constants(groups: ExpertGroups | None) -> dict[str, bool]:
    return {"GROUPED": groups is not None, "SCALED": groups is not None and groups.scale is not None}


def _multiply_few(
    x: PreparedRows, weight: PackedMatrix, bias: Tensor | None, out: Tensor, groups: ExpertGroups | None
) -> None:
    count, rows = out.shape
    tiles = tiles_for(out.device).for_few(weight.format)
    shared = splits(rows, weight.chunks // tiles.ways, tiles, 1 if groups is None else groups.share)
    target = _parts_of(out, shared)
    size = groups.size if groups else few_tokens(x.rows, out.device)
    _few_rows[(-(-rows // tiles.rows), shared, 1 if groups is None else len(groups.tiles))](
        x.values, x.factors, *weight.planes(), out if bias is None else bias, target, *_grouped(groups, out),
        count, rows, weight.rows, weight.chunks, x.width, x.rows * x.width,
        **_constants(weight), **_group_constants(groups), PARTS=_parts(weight),
        BIAS=bias is not None, SPLITS=shared, N=tiles.rows, M=size, WAYS=tiles.ways,
        num_warps=tiles.ways, num_stages=tiles.stages,
    )  # fmt: skip
    _add_up(target, out)


def _parts(weight: PackedMatrix) -> int:
    """Return the numbers whose sum an activation is."""
    return 2 if weight.type is GGMLType.BF16 else 1


#: Sums that a program of `_add_parts` adds up.
_ADDED = 512


def _multiply_many(
    x: PreparedRows, weight: PackedMatrix, bias: Tensor | None, out: Tensor, groups: ExpertGroups | None
) -> None:
    count, rows = out.shape
    tiles = tiles_for(out.device).for_many(weight.format)
    size = groups.size if groups else max(_LEAST_TOKENS, min(triton.next_power_of_2(count), tiles.tokens))
    shared = 1 if groups else splits(rows, weight.columns // LEAST_COLUMNS, tiles)
    target = _parts_of(out, shared)
    _many_rows[(-(-rows // tiles.rows), len(groups.tiles) if groups else -(-count // size), shared)](
        x.values, x.factors, *weight.planes(), out if bias is None else bias, target, *_grouped(groups, out),
        count, rows, weight.rows, weight.chunks, x.width, x.rows * x.width,
        **_constants(weight), **_group_constants(groups), PARTS=_parts(weight), BIAS=bias is not None,
        N=tiles.rows, M=size, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    _add_up(target, out)


#: Rows of x in a tile of `_many_rows`, at least. Their number orders no sums.
_LEAST_TOKENS = 32
#: Columns that a program of `_many_rows` has, at least: chunks of 128 are read three ahead.
LEAST_COLUMNS = 512


def _multiply_dense(
    x: PreparedRows, weight: PackedMatrix, values: Tensor, bias: Tensor | None, out: Tensor, begin: int
) -> None:
    """Multiply by `values` 16-bit [n, width], which are the matrix's rows from `begin`."""
    rows, parts = len(values), _parts(weight)
    tiles = tiles_for(out.device).dense if parts == 1 else tiles_for(out.device).dense_parts
    programs = -(-rows // tiles.rows) * -(-x.rows // tiles.tokens)
    _dense[(programs,)](
        x.values, x.factors, values, weight.factors[begin:], out if bias is None else bias[begin:],
        out[:, begin:], x.rows, rows, values.shape[1], x.width, weight.rows, x.rows * x.width,
        PARTS=parts, BIAS=bias is not None, N=tiles.rows, M=tiles.tokens, num_warps=tiles.warps,
        num_stages=tiles.stages,
    )  # fmt: skip


def _multiply_exactly(
    x: PreparedRows,
    weight: PackedMatrix,
    bias: Tensor | None,
    out: Tensor,
    groups: ExpertGroups | None,
    few: bool,
) -> None:
    count, rows = out.shape
    arguments = (x.values, weight.codes, out if bias is None else bias, out)
    sizes = (count, rows, weight.columns, weight.codes.shape[1])
    if few:
        _exact_few_rows[(-(-rows // _EXACT_ROWS), count)](
            *arguments, *_grouped(groups, out)[2:], groups.chosen if groups else out, *sizes,
            **_group_constants(groups), BIAS=bias is not None, N=_EXACT_ROWS, K=_EXACT_COLUMNS, num_warps=4,
        )  # fmt: skip
    else:
        tiles = tiles_for(out.device).exact
        size = groups.size if groups else tiles.tokens
        _exact_many_rows[(-(-rows // tiles.rows), len(groups.tiles) if groups else -(-count // size))](
            *arguments, *_grouped(groups, out), *sizes, **_group_constants(groups), BIAS=bias is not None,
            N=tiles.rows, M=size, K=32, num_warps=tiles.warps, num_stages=tiles.stages,
        )  # fmt: skip


#: Rows and columns that a program of `_exact_few_rows` multiplies at a time.
_EXACT_ROWS = 4
_EXACT_COLUMNS = 512


@triton.jit
def dot(a, b, total):
    """Return `a @ b + total`, with sums in float32.

    The interpreter multiplies in float64: numpy orders float32 sums by the sizes of tiles, and has no
    bfloat16.
    """
    if INTERPRETED:
        product = tl.dot(a.to(tl.float64), b.to(tl.float64), out_dtype=tl.float64)
        total += product.to(tl.float32)
    else:
        total = tl.dot(a, b, total, input_precision="ieee")
    return total


@triton.jit
def half_scale(largest):
    """Return the power of two that a row is multiplied by as float16, and its inverse.

    `largest` int32 are the bits of the row's largest magnitude. The inverse is NaN if that is not finite.
    """
    exponent = largest >> 23
    # The largest becomes 2^14 to 2^15, just below float16's last numbers. No float32 power is above 2^127.
    up = tl.minimum(127 + 14 + 127 - exponent, 253)
    factor = ((254 - up) << 23).to(tl.float32, bitcast=True)
    return (up << 23).to(tl.float32, bitcast=True), tl.where(exponent == 255, float("nan"), factor)


@triton.jit
def two_parts(x):
    """Return two bfloat16 numbers whose sum is x, but for the last eight of its bits."""
    # The lower half is cut off, not rounded, so that no finite number becomes infinite.
    first = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return first.to(tl.bfloat16), (x - first).to(tl.bfloat16)


@triton.jit
def _prepare(x, values, factors, rows, columns, width, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Write a row as 16-bit numbers [width], padded by zeros."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    scale = 1.0
    if HALF:
        largest = tl.zeros([BLOCK], tl.int32)
        for begin in range(0, columns, BLOCK):
            given = tl.load(x + row * columns + begin + places, mask=begin + places < columns, other=0.0)
            # As integers, magnitudes have the same order, and NaN comes after infinity.
            largest = tl.maximum(largest, given.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
        scale, factor = half_scale(tl.max(largest, axis=0))
        tl.store(factors + row, factor)
    for begin in range(0, width, BLOCK):
        at = begin + places
        given = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
        if HALF:
            tl.store(values + row * width + at, (given * scale).to(tl.float16), mask=at < width)
        else:
            first, rest = two_parts(given)
            tl.store(values + row * width + at, first, mask=at < width)
            tl.store(values + (rows + row) * width + at, rest, mask=at < width)


@triton.jit
def _rows_of_tile(pairs, tiles, share, tokens, index, M: tl.constexpr, GROUPED: tl.constexpr):
    """Return the rows of x and of the result in a tile, which of them there are [M], and their expert."""
    m = tl.arange(0, M)
    if GROUPED:
        expert = tl.load(tiles + 3 * index)
        begin = tl.load(tiles + 3 * index + 1)
        inside = m < tl.load(tiles + 3 * index + 2)
        target = tl.load(pairs + begin + m, mask=inside, other=0).to(tl.int64)
        source = target // share
    else:
        expert = 0
        inside = index * M + m < tokens
        target = tl.minimum(index * M + m, tokens - 1).to(tl.int64)
        source = target
    return source, target, inside, expert


@triton.jit
def _few_rows(
    x,
    x_factors,
    codes,
    high,
    scales,
    supers,
    factors,
    bias,
    out,
    pairs,
    tiles,
    pair_scales,
    share,
    tokens,
    rows,
    all_rows,
    chunks,
    width,
    part,
    GROUPED: tl.constexpr,
    SCALED: tl.constexpr,
    BITS: tl.constexpr,
    SCALES: tl.constexpr,
    LEVELS: tl.constexpr,
    PTX: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
    WAYS: tl.constexpr,
):
    """Multiply up to M rows of x by N rows of weights. Chunk i is multiplied in way i % WAYS."""
    split = tl.program_id(1)
    source, target, present, expert = _rows_of_tile(pairs, tiles, share, tokens, tl.program_id(2), M, GROUPED)
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, 32)
    way = tl.arange(0, WAYS)[:, None, None]
    own = tl.minimum(n, rows - 1) + expert * rows
    row = own.to(tl.int64)[None, :, None]
    TILES: tl.constexpr = tiles_in_chunk(BITS)
    steps = tl.cdiv(chunks, WAYS)
    per_split = tl.cdiv(steps, SPLITS)
    end = tl.minimum((split + 1) * per_split, steps)
    if GROUPED:  # an unused tile reads nothing
        end = tl.where(tl.load(tiles + 3 * tl.program_id(2) + 2) > 0, end, 0)
    total = tl.zeros([WAYS, N, M], tl.float32)
    for step in range(split * per_split, end):
        chunk = step * WAYS + way
        inside = present[None, None, :] & (chunk < chunks)
        x_chunk = x + source[None, None, :] * width + chunk * (32 * TILES) + k[None, :, None]
        chunk = tl.minimum(chunk, chunks - 1)
        for j in tl.static_range(TILES):
            weights = tile(
                codes, high, scales, supers, row, all_rows, chunk, chunks, k[None, None, :], j, BITS, SCALES,
                LEVELS, tl.float16, PTX,
            )  # fmt: skip
            for i in tl.static_range(PARTS):
                given = tl.load(x_chunk + 32 * j + i * part, mask=inside, other=0.0)
                total = dot(weights, given, total)
    sums = tl.sum(total, axis=0)  # [N, M]
    sums *= tl.load(factors + own)[:, None]
    if PARTS == 1:
        sums *= tl.load(x_factors + source, mask=present, other=0.0)[None, :]
    if SCALED:
        sums *= tl.load(pair_scales + target, mask=present, other=0.0)[None, :]
    if BIAS:
        sums += tl.load(bias + own, mask=(n < rows) & (split == 0), other=0.0)[:, None]
    place = (split * tokens + target)[None, :] * rows + n[:, None]
    tl.store(out + place, sums, mask=(n < rows)[:, None] & present[None, :])


@triton.jit
def _add_parts(parts, out, size, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """Add the sums [SPLITS, size] of programs that shared the columns, in order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.load(parts + at, mask=inside)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts + split * size + at, mask=inside)
    tl.store(out + at, total, mask=inside)


@triton.jit
def _many_rows(
    x,
    x_factors,
    codes,
    high,
    scales,
    supers,
    factors,
    bias,
    out,
    pairs,
    tiles,
    pair_scales,
    share,
    tokens,
    rows,
    all_rows,
    chunks,
    width,
    part,
    GROUPED: tl.constexpr,
    SCALED: tl.constexpr,
    BITS: tl.constexpr,
    SCALES: tl.constexpr,
    LEVELS: tl.constexpr,
    PTX: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
):
    """Multiply M rows of x by N rows of weights, which are unpacked for that.

    The programs of the last axis share the columns, and each writes its sums.
    """
    split = tl.program_id(2)
    source, target, present, expert = _rows_of_tile(pairs, tiles, share, tokens, tl.program_id(1), M, GROUPED)
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, 32)
    own = tl.minimum(n, rows - 1) + expert * rows
    row = own.to(tl.int64)[:, None]
    TILES: tl.constexpr = tiles_in_chunk(BITS)
    per_split = tl.cdiv(chunks, tl.num_programs(2))
    first = split * per_split
    end = tl.minimum(first + per_split, chunks)
    if GROUPED:  # an unused tile reads nothing
        end = tl.where(tl.load(tiles + 3 * tl.program_id(1) + 2) > 0, end, 0)
    total = tl.zeros([N, M], tl.float32)
    x_chunk = x + source[None, :] * width + first * (32 * TILES) + k[:, None]
    for chunk in range(first, end):
        for j in tl.static_range(TILES):
            weights = tile(
                codes, high, scales, supers, row, all_rows, chunk, chunks, k[None, :], j, BITS, SCALES,
                LEVELS, tl.float16, PTX,
            )  # fmt: skip
            for i in tl.static_range(PARTS):
                total = dot(weights, tl.load(x_chunk + 32 * j + i * part), total)
        x_chunk += 32 * TILES
    total *= tl.load(factors + own)[:, None]
    if PARTS == 1:
        total *= tl.load(x_factors + source)[None, :]
    if SCALED:
        total *= tl.load(pair_scales + target)[None, :]
    if BIAS:
        total += tl.load(bias + own, mask=(n < rows) & (split == 0), other=0.0)[:, None]
    place = (split * tokens + target)[None, :] * rows + n[:, None]
    tl.store(out + place, total, mask=(n < rows)[:, None] & present[None, :])


@triton.jit
def _dense(
    x,
    x_factors,
    values,
    factors,
    bias,
    out,
    tokens,
    rows,
    values_width,
    width,
    out_width,
    part,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
):
    """Multiply M rows of x by N rows of 16-bit weights [rows, values_width]."""
    K: tl.constexpr = 64
    row_tiles = tl.cdiv(rows, N)
    token_tiles = tl.cdiv(tokens, M)
    # Programs that run at the same time share 8 tiles of tokens, and their tiles of rows, in the L2 cache.
    group = tl.program_id(0) // (8 * row_tiles)
    height = tl.minimum(token_tiles - group * 8, 8)
    inside = tl.program_id(0) % (8 * row_tiles)
    n = inside // height * N + tl.arange(0, N)
    m = (group * 8 + inside % height) * M + tl.arange(0, M)
    k = tl.arange(0, K)
    row = tl.minimum(n, rows - 1).to(tl.int64)
    token = tl.minimum(m, tokens - 1).to(tl.int64)
    w_tile = values + row[:, None] * values_width + k[None, :]
    x_tile = x + token[None, :] * width + k[:, None]
    total = tl.zeros([N, M], tl.float32)
    for _ in range(0, values_width, K):
        weights = tl.load(w_tile)
        for i in tl.static_range(PARTS):
            total = dot(weights, tl.load(x_tile + i * part), total)
        w_tile += K
        x_tile += K
    total *= tl.load(factors + row)[:, None]
    if PARTS == 1:
        total *= tl.load(x_factors + token)[None, :]
    if BIAS:
        total += tl.load(bias + row)[:, None]
    place = token[None, :] * out_width + n[:, None]
    tl.store(out + place, total, mask=(n[:, None] < rows) & (m[None, :] < tokens))


@triton.jit
def _exact_few_rows(
    x,
    weights,
    bias,
    out,
    pair_scales,
    share,
    chosen,
    tokens,
    rows,
    columns,
    width,
    GROUPED: tl.constexpr,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    """Multiply a row of x by N rows of float32 weights [rows, width]."""
    n = tl.program_id(0) * N + tl.arange(0, N)
    target = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, K)
    own = tl.minimum(n, rows - 1).to(tl.int64)
    if GROUPED:
        own += tl.load(chosen + target).to(tl.int64) * rows
    total = tl.zeros([N, K], tl.float32)
    for begin in range(0, columns, K):
        inside = begin + k < columns
        given = tl.load(x + target // share * columns + begin + k, mask=inside, other=0.0)
        place = own[:, None] * width + begin + k[None, :]
        total += tl.load(weights + place, mask=inside[None, :], other=0.0) * given[None, :]
    sums = tl.sum(total, axis=1)
    if SCALED:
        sums *= tl.load(pair_scales + target)
    if BIAS:
        sums += tl.load(bias + own)
    tl.store(out + target * rows + n, sums, mask=n < rows)


@triton.jit
def _exact_many_rows(
    x,
    weights,
    bias,
    out,
    pairs,
    tiles,
    pair_scales,
    share,
    tokens,
    rows,
    columns,
    width,
    GROUPED: tl.constexpr,
    SCALED: tl.constexpr,
    BIAS: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    """Multiply M rows of x by N rows of float32 weights [rows, width], in float32."""
    source, target, present, expert = _rows_of_tile(pairs, tiles, share, tokens, tl.program_id(1), M, GROUPED)
    n = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    own = (tl.minimum(n, rows - 1) + expert * rows).to(tl.int64)
    total = tl.zeros([N, M], tl.float32)
    for begin in range(0, columns, K):
        inside = begin + k < columns
        values = tl.load(weights + own[:, None] * width + begin + k[None, :])
        given = tl.load(x + source[None, :] * columns + begin + k[:, None], mask=inside[:, None], other=0.0)
        total = dot(values, given, total)
    if SCALED:
        total *= tl.load(pair_scales + target)[None, :]
    if BIAS:
        total += tl.load(bias + own)[:, None]
    place = target[None, :] * rows + n[:, None]
    tl.store(out + place, total, mask=(n < rows)[:, None] & present[None, :])


@triton.jit
def _unpack(
    codes,
    high,
    scales,
    supers,
    factors,
    tokens,
    out,
    begin,
    count,
    rows,
    chunks,
    columns,
    width,
    GATHERED: tl.constexpr,
    BITS: tl.constexpr,
    SCALES: tl.constexpr,
    LEVELS: tl.constexpr,
    PTX: tl.constexpr,
    ROWS: tl.constexpr,
    OUT: tl.constexpr,
):
    """Write a chunk of ROWS rows: those that `tokens` names, times their factors, or those from `begin`."""
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    chunk = tl.program_id(1)
    k = tl.arange(0, 32)
    inside = n < count
    if GATHERED:
        row = tl.load(tokens + n, mask=inside, other=0).to(tl.int64)
    else:
        row = begin + tl.minimum(n, count - 1).to(tl.int64)
    TILES: tl.constexpr = tiles_in_chunk(BITS)
    for j in tl.static_range(TILES):
        values = tile(
            codes,
            high,
            scales,
            supers,
            row[:, None],
            rows,
            chunk,
            chunks,
            k[None, :],
            j,
            BITS,
            SCALES,
            LEVELS,
            OUT,
            PTX,
        )
        if GATHERED:
            values *= tl.load(factors + row)[:, None]
        column = (chunk * TILES + j) * 32 + k
        place = n.to(tl.int64)[:, None] * width + column[None, :]
        tl.store(out + place, values, mask=inside[:, None] & (column < columns)[None, :])


def variants() -> Iterable[Variant]:
    """Yield the forms of the kernels that launches compile, for each kind of device: the largest of each."""
    found: dict[tuple[object, ...], Variant] = {}
    for tiles in TILES:  # of equal forms the last is kept, for the device that can share the least
        for form in _products(tiles):
            found[form.name, *form.constants.values(), form.warps, form.stages] = form
    yield from found.values()
    for type in FORMATS:
        if type not in _CODES:
            constants = {"GATHERED": True, "ROWS": 1, "OUT": tl.float32}
            yield _variant(f"rows {type.name}", _unpack, type, TILES[-1], constants, 1)
            constants = {"GATHERED": False, "ROWS": _UNPACKED_MATRIX_ROWS, "OUT": tl.float16}
            yield _variant(f"matrix {type.name}", _unpack, type, TILES[-1], constants, 4)
    for number, block in (("fp16", 4096), ("fp16", _PREPARED_COLUMNS), ("bf16", 4096)):
        signature = {
            "x": "*fp32", "values": f"*{number}", "factors": "*fp32", "rows": "i32", "columns": "i32",
            "width": "i32", "HALF": "constexpr", "BLOCK": "constexpr",
        }  # fmt: skip
        constants = {"HALF": number == "fp16", "BLOCK": block}
        yield Variant(f"prepare {number} {block}", _prepare, signature, constants, 8)
    signature = {"parts": "*fp32", "out": "*fp32", "size": "i32", "SPLITS": "constexpr", "BLOCK": "constexpr"}
    yield Variant("add 8", _add_parts, signature, {"SPLITS": 8, "BLOCK": _ADDED}, 4)


def _products(tiles: Tiles) -> Iterable[Variant]:
    """Yield the forms of products on one kind of device."""
    for type in FORMATS:
        yield from _few_variants(type, tiles)
        yield from _many_variants(type, tiles)
    for type in (GGMLType.F16, GGMLType.BF16):
        chosen = tiles.dense if type is GGMLType.F16 else tiles.dense_parts
        constants = {"PARTS": 1 if type is GGMLType.F16 else 2, "N": chosen.rows, "M": chosen.tokens}
        yield _variant(f"dense {type.name}", _dense, type, tiles, constants, chosen.warps, chosen.stages)


def _few_variants(type: GGMLType, tiles: Tiles) -> Iterable[Variant]:
    """Yield the forms of products with few rows: 16 of them, or experts with the smallest tiles."""
    for size, grouped in ((16, False), (tiles.few_tokens, True)):
        name = f"few {type.name} {size}" + (" of experts" if grouped else "")
        groups = {"GROUPED": grouped, "SCALED": grouped}
        if type is GGMLType.F32:
            constants = {**groups, "N": _EXACT_ROWS, "K": _EXACT_COLUMNS}
            yield _variant(name, _exact_few_rows, type, tiles, constants, 4)
        else:
            chosen = tiles.for_few(FORMATS[type])
            constants = {
                **groups, "PARTS": 2 if type is GGMLType.BF16 else 1, "SPLITS": 1, "N": chosen.rows,
                "M": size, "WAYS": chosen.ways,
            }  # fmt: skip
            yield _variant(name, _few_rows, type, tiles, constants, chosen.ways, chosen.stages)


def _many_variants(type: GGMLType, tiles: Tiles) -> Iterable[Variant]:
    """Yield the forms of products with many rows that read packed weights: one matrix, or experts."""
    chosen = tiles.exact if type is GGMLType.F32 else tiles.for_many(FORMATS[type])
    for size, grouped in ((chosen.tokens, False), (64, True)):
        if grouped or type not in (GGMLType.F16, GGMLType.BF16):
            name = f"many {type.name} {size}" + (" of experts" if grouped else "")
            constants = {"GROUPED": grouped, "SCALED": grouped, "N": chosen.rows, "M": size}
            if type is GGMLType.F32:
                kernel, constants = _exact_many_rows, constants | {"K": 32}
            else:
                kernel, constants = _many_rows, constants | {"PARTS": 2 if type is GGMLType.BF16 else 1}
            yield _variant(name, kernel, type, tiles, constants, chosen.warps, chosen.stages)


#: Weights of floating-point types, as signatures name them.
_CODES = {GGMLType.F32: "fp32", GGMLType.F16: "fp16", GGMLType.BF16: "bf16"}
_SUPERS = {"bytes": "*fp32", "halves": "*fp32", "bytes_affine": "*i32", "halves_affine": "*i32"}


def _variant(
    name: str,
    kernel: Any,
    type: GGMLType,
    tiles: Tiles,
    constants: dict[str, Any],
    warps: int,
    stages: int = 3,
) -> Variant:
    """Return the form of a kernel with some constants, to which those of the type are added."""
    form = FORMATS[type]
    codes = f"*{_CODES.get(type, 'i16')}"
    plane = codes if type in _CODES else ""
    known: dict[str, str] = {
        "x": f"*{_CODES.get(type, 'fp16')}", "values": codes, "weights": codes, "codes": codes,
        "high": plane or ("*u8" if form.bits in (3, 5) else "*i16"), "scales": plane or "*i32",
        "supers": plane or _SUPERS.get(form.scales, "*i16"), "pairs": "*i32", "tiles": "*i32",
        "chosen": "*i32",
    }  # fmt: skip
    if not tiles.shared and kernel is not _unpack:
        name += ", 64 KiB"
    if kernel is _unpack:
        known |= {"tokens": "*i32", "out": "*fp32" if constants["GATHERED"] else "*fp16"}
    floats = ("x_factors", "factors", "bias", "out", "pair_scales")
    constants = {
        "BITS": form.bits, "SCALES": form.scales, "LEVELS": form.levels, "PTX": tiles is not TILES[-1],
        "BIAS": True, **constants,
    }  # fmt: skip
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name.isupper() else known.get(name, "*fp32" if name in floats else "i32")
        for name in names
    }
    return Variant(
        name,
        kernel,
        signature,
        {name: constants[name] for name in names if name.isupper()},
        warps,
        stages,
        tiles.shared,
    )
