"""Products with packed matrices: `x @ weight.T`, for few rows bound by memory, for many by tensor cores.

Three kernels compute products of 16-bit tiles, with sums in float32:

- `_few_rows`, up to 16 rows: each warp multiplies the chunks of its own share of the columns, so that a few
  rows of weights keep a multiprocessor busy. If a matrix has too few rows even so, programs share the
  columns, too, and `_add_parts` adds their sums in order.
- `_many_rows`, up to 256 rows: unpacks tiles of weights on the way to the tensor cores.
- `_dense`, from there on: multiplies a matrix that `unpack_matrix` has written as float16, since each weight
  would be unpacked for every tile of rows otherwise. Its sums have the same order as those of `_many_rows`.

Activations are rounded to float16, after a division of each row by a power of two that brings its largest
magnitude near float16's (`prepare`). A row that has a NaN or an infinity gives only NaN. For BF16 weights,
whose range float16 lacks, activations are sums of two bfloat16 numbers. F32 weights are multiplied in
float32 (`_exact_few_rows`, `_exact_many_rows`).

A row's result is the same bits whatever else is in the batch, as long as the batch stays on the same side of
`FEW_ROWS`: nothing that orders the sum over columns depends on the number of rows.
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
from puna.ops.gpu.kernels import interpreter  # noqa: F401
from puna.ops.gpu.kernels.formats import INTERPRETED, tile
from puna.ops.gpu.kernels.variant import Variant
from puna.ops.gpu.packed import FORMATS, PackedMatrix

#: Batches of up to so many rows are bound by memory.
FEW_ROWS = 16
#: Up to so many rows, unpacking tiles costs less than writing the whole matrix as float16 and reading it.
UNPACKED_ROWS = 256
#: Rows of activations are padded to whole chunks of every format.
_COLUMNS = 256
#: Weights unpacked at a time: 128 MiB of float16.
_UNPACKED_WEIGHTS = 1 << 26


@dataclass(frozen=True)
class FewTiles:
    """Tiles of `_few_rows`. The ways and splits order the sums: they must not depend on the rows of x."""

    rows: int = 32  # of the matrix, in a program
    ways: int = 4  # chunks that are multiplied side by side, a warp each
    stages: int = 3
    programs: int = 256  # columns are split until there are so many: two for each multiprocessor of an H200
    max_splits: int = 8  # each of which writes its sums


@dataclass(frozen=True)
class ManyTiles:
    """Tiles of `_many_rows`, `_dense` and `_exact_many_rows`."""

    rows: int  # of the matrix
    tokens: int
    warps: int
    stages: int


FEW = FewTiles()
MANY = ManyTiles(rows=64, tokens=64, warps=4, stages=3)
DENSE = ManyTiles(rows=128, tokens=128, warps=8, stages=4)
EXACT = ManyTiles(rows=32, tokens=32, warps=4, stages=2)


@dataclass(frozen=True)
class Prepared:
    """Rows of activations in the form that products with a type of weights take.

    `values` float16 [rows, width], to be multiplied by the powers of two `factors` [rows]; or bfloat16 [2,
    rows, width], the sums of which are the activations; or float32 [rows, columns], as they were.
    """

    values: Tensor
    factors: Tensor
    rows: int
    columns: int

    @property
    def width(self) -> int:
        """The distance between rows."""
        return self.values.shape[-1]


def form_of(type: GGMLType) -> torch.dtype:
    """Return the type of activations that a matrix of `type` is multiplied by."""
    return {GGMLType.F32: torch.float32, GGMLType.BF16: torch.bfloat16}.get(type, torch.float16)


def prepare(x: Tensor, form: torch.dtype) -> Prepared:
    """Return rows `x` [T, columns] in a form (see `Prepared` and `form_of`)."""
    rows, columns = x.shape
    if form is torch.float32:
        return Prepared(x, x, rows, columns)
    width = -(-columns // _COLUMNS) * _COLUMNS
    parts = (2,) if form is torch.bfloat16 else ()
    values = torch.empty((*parts, rows, width), dtype=form, device=x.device)
    factors = torch.empty(rows, device=x.device)
    if rows and width:
        block = min(triton.next_power_of_2(width), _PREPARED_COLUMNS)
        _prepare[(rows,)](
            x, values, factors, rows, columns, width, HALF=form is torch.float16, BLOCK=block, num_warps=8
        )
    return Prepared(values, factors, rows, columns)


#: Columns that a program of `_prepare` holds in registers.
_PREPARED_COLUMNS = 16384


def linear(x: Tensor, weight: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """Return `x @ weight.T + bias`: x float32 [T, columns], bias float32 [rows], result [T, rows]."""
    return multiply(prepare(x, form_of(weight.type)), weight, bias)


def linear_many(
    x: Tensor, weights: Sequence[PackedMatrix], biases: Sequence[Tensor | None] | None = None
) -> list[Tensor]:
    """Return `linear` of the same x with each of `weights`, preparing x once for each form."""
    forms: dict[torch.dtype, Prepared] = {}
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


def multiply(x: Prepared, weight: PackedMatrix, bias: Tensor | None = None) -> Tensor:
    """Return the product of prepared rows [T, columns] and a matrix, plus `bias`: float32 [T, rows]."""
    out = torch.empty((x.rows, weight.rows), device=x.values.device)
    if not out.numel():
        return out
    if not weight.columns:
        return out.copy_(torch.zeros_like(out) if bias is None else bias)
    if weight.type is GGMLType.F32:
        _multiply_exactly(x, weight, bias, out)
    elif x.rows <= FEW_ROWS:
        _multiply_few(x, weight, bias, out)
    elif weight.format.bits < 16 and x.rows <= UNPACKED_ROWS:
        _multiply_many(x, weight, bias, out)
    elif weight.format.bits < 16:
        step = max(DENSE.rows, _UNPACKED_WEIGHTS // x.width // DENSE.rows * DENSE.rows)
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
    _unpack[(-(-(end - begin) // _UNPACKED_ROWS), weight.chunks)](
        *weight.planes(), weight.codes, out, begin, end - begin, weight.rows, weight.chunks, width, width,
        GATHERED=False, ROWS=_UNPACKED_ROWS, OUT=tl.float16, **_constants(weight), num_warps=4,
    )  # fmt: skip
    return out


#: Rows that a program of `_unpack` unpacks a chunk of.
_UNPACKED_ROWS = 32


def _constants(weight: PackedMatrix) -> dict[str, Any]:
    form = weight.format
    return {"BITS": form.bits, "SCALES": form.scales, "LEVELS": form.levels}


def splits(rows: int, chunks: int, tiles: FewTiles = FEW) -> int:
    """Return the programs that share a row's columns."""
    wanted = tiles.programs // max(1, -(-rows // tiles.rows))
    return max(1, min(wanted, tiles.max_splits, chunks // tiles.ways))


def _multiply_few(x: Prepared, weight: PackedMatrix, bias: Tensor | None, out: Tensor) -> None:
    count = splits(weight.rows, weight.chunks)
    target = out
    if count > 1:
        target = torch.empty((count, x.rows, weight.rows), device=out.device)
    programs = (-(-weight.rows // FEW.rows), count)
    _few_rows[programs](
        x.values, x.factors, *weight.planes(), target if bias is None or count > 1 else bias, target,
        x.rows, weight.rows, weight.chunks, x.width, weight.rows, x.rows * x.width,
        **_constants(weight), PARTS=2 if weight.type is GGMLType.BF16 else 1, BIAS=bias is not None and count == 1,
        SPLITS=count, N=FEW.rows, M=8 if x.rows <= 8 else 16, WAYS=FEW.ways, num_warps=FEW.ways,
        num_stages=FEW.stages,
    )  # fmt: skip
    if count > 1:
        total = x.rows * weight.rows
        _add_parts[(-(-total // _ADDED),)](
            target, out if bias is None else bias, out, total, weight.rows, SPLITS=count, BIAS=bias is not None,
            BLOCK=_ADDED, num_warps=4,
        )  # fmt: skip


#: Sums that a program of `_add_parts` adds up.
_ADDED = 512


def _multiply_many(x: Prepared, weight: PackedMatrix, bias: Tensor | None, out: Tensor) -> None:
    programs = (-(-weight.rows // MANY.rows), -(-x.rows // MANY.tokens))
    _many_rows[programs](
        x.values, x.factors, *weight.planes(), out if bias is None else bias, out,
        x.rows, weight.rows, weight.chunks, x.width,
        **_constants(weight), BIAS=bias is not None, N=MANY.rows, M=MANY.tokens, num_warps=MANY.warps,
        num_stages=MANY.stages,
    )  # fmt: skip


def _multiply_dense(
    x: Prepared, weight: PackedMatrix, values: Tensor, bias: Tensor | None, out: Tensor, begin: int
) -> None:
    """Multiply by `values` 16-bit [n, width], which are the matrix's rows from `begin`."""
    rows = len(values)
    programs = -(-rows // DENSE.rows) * -(-x.rows // DENSE.tokens)
    _dense[(programs,)](
        x.values, x.factors, values, weight.factors[begin:], out if bias is None else bias[begin:],
        out[:, begin:], x.rows, rows, values.shape[1], x.width, weight.rows, x.rows * x.width,
        PARTS=2 if weight.type is GGMLType.BF16 else 1, BIAS=bias is not None, N=DENSE.rows, M=DENSE.tokens,
        num_warps=DENSE.warps, num_stages=DENSE.stages,
    )  # fmt: skip


def _multiply_exactly(x: Prepared, weight: PackedMatrix, bias: Tensor | None, out: Tensor) -> None:
    arguments = (
        x.values, weight.codes, out if bias is None else bias, out, x.rows, weight.rows, weight.columns,
        weight.codes.shape[1],
    )  # fmt: skip
    if x.rows <= FEW_ROWS:
        _exact_few_rows[(-(-weight.rows // _EXACT_ROWS), x.rows)](
            *arguments, BIAS=bias is not None, N=_EXACT_ROWS, K=_EXACT_COLUMNS, num_warps=4
        )
    else:
        _exact_many_rows[(-(-weight.rows // EXACT.rows), -(-x.rows // EXACT.tokens))](
            *arguments, BIAS=bias is not None, N=EXACT.rows, M=EXACT.tokens, K=32, num_warps=EXACT.warps,
            num_stages=EXACT.stages,
        )  # fmt: skip


#: Rows and columns that a program of `_exact_few_rows` multiplies at a time.
_EXACT_ROWS = 4
_EXACT_COLUMNS = 512


@triton.jit
def dot(a, b, total):
    """Return `a @ b + total`, with sums in float32."""
    if INTERPRETED:
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, total)


@triton.jit
def _prepare(x, values, factors, rows, columns, width, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Write a row as 16-bit numbers [width], padded by zeros."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    if HALF:
        largest = tl.zeros([BLOCK], tl.int32)
        for begin in range(0, columns, BLOCK):
            given = tl.load(x + row * columns + begin + places, mask=begin + places < columns, other=0.0)
            # As integers, magnitudes have the same order, and NaN comes after infinity.
            largest = tl.maximum(largest, given.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
        exponent = tl.max(largest, axis=0) >> 23
        # 2^14 to 2^15 is where float16 ends, less a bit for rounding. The largest float32 power is 2^127.
        up = tl.minimum(127 + 14 + 127 - exponent, 253)
        scale = (up << 23).to(tl.float32, bitcast=True)
        factor = ((254 - up) << 23).to(tl.float32, bitcast=True)
        tl.store(factors + row, tl.where(exponent == 255, float("nan"), factor))
        for begin in range(0, width, BLOCK):
            at = begin + places
            given = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
            tl.store(values + row * width + at, (given * scale).to(tl.float16), mask=at < width)
    else:
        for begin in range(0, width, BLOCK):
            at = begin + places
            given = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
            # The upper half is cut off, so that no finite number becomes infinite.
            first = (given.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
            rest = tl.where(given == given, given - first, given)
            tl.store(values + row * width + at, first.to(tl.bfloat16), mask=at < width)
            tl.store(values + (rows + row) * width + at, rest.to(tl.bfloat16), mask=at < width)


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
    tokens,
    rows,
    chunks,
    width,
    out_width,
    part,
    BITS: tl.constexpr,
    SCALES: tl.constexpr,
    LEVELS: tl.constexpr,
    PARTS: tl.constexpr,
    BIAS: tl.constexpr,
    SPLITS: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
    WAYS: tl.constexpr,
):
    """Multiply up to M rows of x by N rows of weights. Chunk i is multiplied in way i % WAYS."""
    split = tl.program_id(1)
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.arange(0, M)
    k = tl.arange(0, 32)
    way = tl.arange(0, WAYS)[:, None, None]
    row = tl.minimum(n, rows - 1).to(tl.int64)[None, :, None]
    TILES: tl.constexpr = 8 if BITS == 5 or BITS == 3 or BITS == 2 else 4
    steps = (chunks + WAYS - 1) // WAYS
    per_split = (steps + SPLITS - 1) // SPLITS
    total = tl.zeros([WAYS, N, M], tl.float32)
    for step in range(split * per_split, tl.minimum((split + 1) * per_split, steps)):
        chunk = step * WAYS + way
        inside = (m[None, None, :] < tokens) & (chunk < chunks)
        x_chunk = x + m[None, None, :] * width + chunk * (32 * TILES) + k[None, :, None]
        chunk = tl.minimum(chunk, chunks - 1)
        for j in tl.static_range(TILES):
            weights = tile(
                codes, high, scales, supers, row, rows, chunk, chunks, k[None, None, :], j, BITS, SCALES, LEVELS,
                tl.float16,
            )  # fmt: skip
            for i in tl.static_range(PARTS):
                given = tl.load(x_chunk + 32 * j + i * part, mask=inside, other=0.0)
                total = dot(weights, given, total)
    sums = tl.sum(total, axis=0)  # [N, M]
    sums *= tl.load(factors + tl.minimum(n, rows - 1))[:, None]
    if PARTS == 1:
        sums *= tl.load(x_factors + m, mask=m < tokens, other=0.0)[None, :]
    if BIAS:
        sums += tl.load(bias + tl.minimum(n, rows - 1))[:, None]
    place = (split * tokens + m).to(tl.int64)[None, :] * out_width + n[:, None]
    tl.store(out + place, sums, mask=(n[:, None] < rows) & (m[None, :] < tokens))


@triton.jit
def _add_parts(parts, bias, out, size, rows, SPLITS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    """Add the sums [SPLITS, T, rows] of programs that shared the columns, in order."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    total = tl.load(parts + at, mask=inside)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(parts + split * size + at, mask=inside)
    if BIAS:
        total += tl.load(bias + at % rows, mask=inside)
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
    tokens,
    rows,
    chunks,
    width,
    BITS: tl.constexpr,
    SCALES: tl.constexpr,
    LEVELS: tl.constexpr,
    BIAS: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
):
    """Multiply M rows of x by N rows of weights, which are unpacked for that."""
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    k = tl.arange(0, 32)
    row = tl.minimum(n, rows - 1).to(tl.int64)[:, None]
    token = tl.minimum(m, tokens - 1).to(tl.int64)
    TILES: tl.constexpr = 8 if BITS == 5 or BITS == 3 or BITS == 2 else 4
    total = tl.zeros([N, M], tl.float32)
    x_chunk = x + token[None, :] * width + k[:, None]
    for chunk in range(chunks):
        for j in tl.static_range(TILES):
            weights = tile(
                codes, high, scales, supers, row, rows, chunk, chunks, k[None, :], j, BITS, SCALES, LEVELS,
                tl.float16,
            )  # fmt: skip
            total = dot(weights, tl.load(x_chunk + 32 * j), total)
        x_chunk += 32 * TILES
    total *= tl.load(factors + tl.minimum(n, rows - 1))[:, None]
    total *= tl.load(x_factors + token)[None, :]
    if BIAS:
        total += tl.load(bias + tl.minimum(n, rows - 1))[:, None]
    place = token[None, :] * rows + n[:, None]
    tl.store(out + place, total, mask=(n[:, None] < rows) & (m[None, :] < tokens))


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
    x, weights, bias, out, tokens, rows, columns, width, BIAS: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    """Multiply a row of x by N rows of float32 weights [rows, width]."""
    n = tl.program_id(0) * N + tl.arange(0, N)
    token = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, K)
    row = tl.minimum(n, rows - 1).to(tl.int64)
    total = tl.zeros([N, K], tl.float32)
    for begin in range(0, columns, K):
        inside = begin + k < columns
        given = tl.load(x + token * columns + begin + k, mask=inside, other=0.0)
        total += tl.load(weights + row[:, None] * width + begin + k[None, :], mask=inside[None, :], other=0.0) * given
    sums = tl.sum(total, axis=1)
    if BIAS:
        sums += tl.load(bias + row)
    tl.store(out + token * rows + n, sums, mask=n < rows)


@triton.jit
def _exact_many_rows(
    x,
    weights,
    bias,
    out,
    tokens,
    rows,
    columns,
    width,
    BIAS: tl.constexpr,
    N: tl.constexpr,
    M: tl.constexpr,
    K: tl.constexpr,
):
    """Multiply M rows of x by N rows of float32 weights [rows, width], in float32."""
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    k = tl.arange(0, K)
    row = tl.minimum(n, rows - 1).to(tl.int64)
    token = tl.minimum(m, tokens - 1).to(tl.int64)
    total = tl.zeros([N, M], tl.float32)
    for begin in range(0, columns, K):
        inside = begin + k < columns
        values = tl.load(weights + row[:, None] * width + begin + k[None, :])
        given = tl.load(x + token[None, :] * columns + begin + k[:, None], mask=inside[:, None], other=0.0)
        total = tl.dot(values, given, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + row)[:, None]
    place = token[None, :] * rows + n[:, None]
    tl.store(out + place, total, mask=(n[:, None] < rows) & (m[None, :] < tokens))


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
    TILES: tl.constexpr = 8 if BITS == 5 or BITS == 3 or BITS == 2 else 4
    for j in tl.static_range(TILES):
        values = tile(
            codes, high, scales, supers, row[:, None], rows, chunk, chunks, k[None, :], j, BITS, SCALES, LEVELS, OUT
        )
        if GATHERED:
            values *= tl.load(factors + row)[:, None]
        column = (chunk * TILES + j) * 32 + k
        place = n.to(tl.int64)[:, None] * width + column[None, :]
        tl.store(out + place, values, mask=inside[:, None] & (column < columns)[None, :])


def variants() -> Iterable[Variant]:
    """Yield every form of the kernels that a launch may compile."""
    return []


_ = FORMATS
