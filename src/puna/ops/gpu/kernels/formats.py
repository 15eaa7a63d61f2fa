"""Weights inside kernels: from the planes of a packed matrix to tiles of 32 columns.

`puna.ops.gpu.packed` writes the planes and says what each holds. A row's codes come in chunks of 128 or 256
columns. Within a chunk, tile j has the columns 32 j to 32 j + 31, and the k-th word has the k-th column of
every tile: all words are shifted by the same number to unpack a tile, and tensor cores take the result as it
is. Scales of neighbouring rows are neighbours.

A weight is `level * scale + offset`: both factors are computed in float32, and rounded to the tile's type.

No instruction converts integers here, since these run at an eighth of the others' rate: a code or a byte is
put into the last bits of a power of two, which is then subtracted. NVIDIA's compiler does not find that two
words fit one register, so that is written in PTX.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl
from triton import constexpr_function

#: The interpreter multiplies bfloat16 tiles wrongly: there they are float32.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

#: The bits of 2^10 as float16 and of 2^23 as float32, whose last bit counts ones.
_HALF = tl.constexpr(0x6400)
_FLOAT = tl.constexpr(0x4B000000)
_FLOAT_ONES = tl.constexpr(8388608.0)


@constexpr_function
def tiles_in_chunk(bits):
    """Return the tiles of 32 columns in a chunk of codes with `bits` bits."""
    return 8 if bits in (2, 3, 5, 6) else 4


@triton.jit
def tile(
    codes,
    high,
    scales,
    supers,
    row,
    rows,
    chunk,
    chunks,
    k,
    J: tl.constexpr,
    BITS: tl.constexpr,
    SCALES: tl.constexpr,
    LEVELS: tl.constexpr,
    OUT: tl.constexpr,
    PTX: tl.constexpr,
):
    """Return tile J of a chunk in each of some rows: [..., n, 32] of type OUT (float16 or float32).

    `row` int64 [..., n, 1], of `rows`; `chunk` [..., 1, 1] or a number, of `chunks`; `k` [32] in the last
    axis. Weights of 16 bits are returned in their own type.
    """
    if BITS == 16:
        weights = tl.load(codes + (row * chunks + chunk) * 128 + 32 * J + k)
    else:
        level = _level(codes, high, row, chunk, chunks, k, J, BITS, LEVELS, OUT, PTX)
        # The groups of 32, 64, 128 and 256 columns that the tile is in.
        wide = tl.cast(chunk, tl.int64)
        if tiles_in_chunk(BITS) == 4:
            group, pair, word, unit_at = wide * 4 + J, wide * 2 + J // 2, wide, wide >> 1
        else:
            group, pair, word, unit_at = wide * 8 + J, wide * 4 + J // 2, wide * 2 + J // 4, wide
        if SCALES == "half":
            two = tl.load(scales + pair * rows + row) >> (J % 2 * 16)
            weights = level * two.to(tl.int16).to(tl.float16, bitcast=True).to(OUT)
        elif SCALES == "exponent":
            power = ((tl.load(scales + word * rows + row) >> (J % 4 * 8)) & 255) << 10
            weights = level * power.to(tl.int16).to(tl.float16, bitcast=True).to(OUT)
        elif SCALES == "affine":
            scale, offset = _both(tl.load(scales + group * rows + row))
            weights = _affine(level, scale, offset + scale * LEVELS, OUT)
        elif SCALES == "bytes":
            unit = tl.load(supers + unit_at * rows + row)
            weights = level * _signed(tl.load(scales + word * rows + row), unit, J % 4, PTX).to(OUT)
        elif SCALES == "bytes_affine":
            first = scales + word * 2 * rows + row
            unit, floor = _both(tl.load(supers + unit_at * rows + row))
            scale = _unsigned(tl.load(first), unit, J % 4, PTX)
            offset = scale * LEVELS - _unsigned(tl.load(first + rows), floor, J % 4, PTX)
            weights = _affine(level, scale, offset, OUT)
        else:
            # For 16 columns each: the axis before the last has the halves of the tile.
            unit = tl.expand_dims(tl.load(supers + unit_at * rows + row), -1)
            first = tl.expand_dims(scales + word * 2 * rows + row, -1)
            bytes = tl.load(first + tl.arange(0, 2)[:, None] * rows)
            if SCALES == "halves":
                weights = level * _in_halves(_signed(bytes, unit, J % 4, PTX), level, OUT)
            else:
                tl.static_assert(SCALES == "halves_affine")
                unit, floor = _both(unit)
                scale = _unsigned(bytes & 0x0F0F0F0F, unit, J % 4, PTX)
                offset = scale * LEVELS - _unsigned((bytes >> 4) & 0x0F0F0F0F, floor, J % 4, PTX)
                weights = tl.fma(level, _in_halves(scale, level, OUT), _in_halves(offset, level, OUT))
    return weights


@triton.jit
def _level(
    codes,
    high,
    row,
    chunk,
    chunks,
    k,
    J: tl.constexpr,
    BITS: tl.constexpr,
    LEVELS: tl.constexpr,
    OUT: tl.constexpr,
    PTX: tl.constexpr,
):
    """Return the levels of tile J of a chunk: [..., n, 32] of type OUT.

    A level is the code minus LEVELS, or what the table of that name has for it.
    """
    place = row * chunks + chunk
    if BITS == 8:
        word = tl.load(codes + place * 64 + (J // 2 * 32) + k)
    elif BITS == 5 or BITS == 6:
        word = tl.load(codes + place * 64 + (J // 4 * 32) + k)
    else:
        word = tl.load(codes + place * 32 + k)
    top = word
    if BITS == 6 or BITS == 5 or BITS == 3:
        top = tl.load(high + place * 32 + k).to(tl.int16)
    if PTX and LEVELS == "iq4":
        # The levels of a word's four codes as bytes, and two of these as float16.
        found = tl.inline_asm_elementwise(_iq4_ptx(), "=r,=r,r", [word], tl.int32, is_pure=True, pack=2)
        level = tl.inline_asm_elementwise(_pair_ptx(J), "=r,r,r", [found], tl.float16, is_pure=True, pack=2)
    elif PTX:
        level = tl.inline_asm_elementwise(
            _level_ptx(J, BITS, LEVELS), "=r,r,r", [word, top], tl.float16, is_pure=True, pack=2
        )
    else:
        code = _code(word, top, J, BITS)
        if LEVELS == "e2m1":
            # Sign, exponent and mantissa in float16's places count units of 2^-15.
            level = (((code & 7) << 9) | ((code & 8) << 12)).to(tl.float16, bitcast=True)
        elif LEVELS == "iq4":
            odd, two, four, eight = (code & 1) != 0, (code & 2) != 0, (code & 4) != 0, (code & 8) != 0
            low = tl.where(two, tl.where(odd, -65.0, -83.0), tl.where(odd, -104.0, -127.0))
            up = tl.where(two, tl.where(odd, -10.0, -22.0), tl.where(odd, -35.0, -49.0))
            negative = tl.where(four, up, low)
            low = tl.where(two, tl.where(odd, 38.0, 25.0), tl.where(odd, 13.0, 1.0))
            up = tl.where(two, tl.where(odd, 113.0, 89.0), tl.where(odd, 69.0, 53.0))
            level = tl.where(eight, tl.where(four, up, low), negative).to(tl.float16)
        else:
            level = (code | _HALF).to(tl.float16, bitcast=True) - (1024.0 + LEVELS)
    return level.to(OUT)


@triton.jit
def _code(word, top, J: tl.constexpr, BITS: tl.constexpr):
    """Return the codes of tile J, from 0, of words and upper bits int16."""
    if BITS == 8:
        code = (word >> (J % 2 * 8)) & 255
    elif BITS == 4:
        code = (word >> (4 * J)) & 15
    elif BITS == 6:
        code = ((word >> (J % 4 * 4)) & 15) | (((top >> (2 * J)) & 3) << 4)
    elif BITS == 5:
        code = ((word >> (J % 4 * 4)) & 15) | (((top >> J) & 1) << 4)
    elif BITS == 3:
        code = ((word >> (2 * J)) & 3) | (((top >> J) & 1) << 2)
    else:
        tl.static_assert(BITS == 2)
        code = (word >> (2 * J)) & 3
    return code


@triton.jit
def _unsigned(word, unit, BYTE: tl.constexpr, PTX: tl.constexpr):
    """Return a byte of each int32 word times `unit`, as float32."""
    if PTX:
        bits = tl.inline_asm_elementwise(_byte_ptx(BYTE), "=r,r", [word], tl.int32, is_pure=True, pack=1)
        product = tl.fma(bits.to(tl.float32, bitcast=True), unit, unit * -_FLOAT_ONES)  # exact
    else:
        bits = ((word >> (8 * BYTE)) & 255) | _FLOAT
        product = (bits.to(tl.float32, bitcast=True) - _FLOAT_ONES) * unit
    return product


@triton.jit
def _signed(word, unit, BYTE: tl.constexpr, PTX: tl.constexpr):
    """Return a byte of each int32 word, minus 128, times `unit`, as float32."""
    if PTX:
        bits = tl.inline_asm_elementwise(_byte_ptx(BYTE), "=r,r", [word], tl.int32, is_pure=True, pack=1)
    else:
        bits = ((word >> (8 * BYTE)) & 255) | _FLOAT
    return (bits.to(tl.float32, bitcast=True) - (_FLOAT_ONES + 128.0)) * unit


@triton.jit
def _both(word):
    """Return the two float16 numbers of each int32 word as float32, the lower half first."""
    low = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    up = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return low.to(tl.float32), up.to(tl.float32)


@triton.jit
def _in_halves(values, level, OUT: tl.constexpr):
    """Return values [..., n, 2, 1] of type OUT, each for 16 columns of `level` [..., n, 32]."""
    values, _ = tl.broadcast(values.to(OUT), tl.zeros([2, 16], OUT))
    return tl.reshape(values, level.shape)


@triton.jit
def _affine(level, scale, offset, OUT: tl.constexpr):
    """Return `level * scale + offset` in OUT; scale and offset are [..., n, 1]."""
    scale = tl.broadcast_to(scale.to(OUT), level.shape)
    return tl.fma(level, scale, tl.broadcast_to(offset.to(OUT), level.shape))


# PTX for two words in a register: $0 are two float16 numbers, $1 the words, $2 the upper bits.


@constexpr_function
def _level_ptx(j, bits, levels):
    """Return instructions for the levels of tile j: $0 float16, of words $1 and their upper bits $2."""
    if levels == "e2m1":
        # Sign, exponent and mantissa in float16's places count units of 2^-15.
        lines = _field("t", "$1", 4 * j + 3, 15, 1, "0") + _field("$0", "$1", 4 * j, 9, 3, "t")
    else:
        if bits == 8:
            lines = ["mov.b32 s, 0x64646464;", f"prmt.b32 t, $1, s, {0x4341 if j % 2 else 0x4240:#x};"]
        else:
            width = 2 if bits in (2, 3) else 4
            lines = _field("t", "$1", j * width % 16, 0, width, "0x64006400")
            if bits > width:
                lines += _field("t", "$2", j * (bits - width), width, bits - width, "t")
        lines += [f"mov.b32 s, {(0x6400 + levels) * 0x10001:#x};", "sub.f16x2 $0, t, s;"]
    return " ".join(["{ .reg .b32 s, t;", *lines, "}"])


@constexpr_function
def _field(target, source, begin, place, width, others):
    """Return instructions that move bits from `begin` of both halves to `place`, beside `others`."""
    lines = []
    if begin > place:
        lines, source = [f"shr.u32 s, {source}, {begin - place};"], "s"
    elif begin < place:
        lines, source = [f"shl.b32 s, {source}, {place - begin};"], "s"
    mask = ((1 << width) - 1) << place
    # 0xEA: the second masks the first, and the third is added.
    return [*lines, f"lop3.b32 {target}, {source}, {mask * 0x10001:#x}, {others}, 0xEA;"]


@constexpr_function
def _iq4_ptx():
    """Return instructions that look up the four codes of each word in $2: bytes of levels plus 128.

    `prmt` takes bytes of two registers by selectors of three bits, which look up in each half of the table.
    The fourth bits select from the two results.
    """
    levels = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
    table = bytes([level + 128 for level in levels])
    parts = [int.from_bytes(table[begin : begin + 4], "little") for begin in range(0, 16, 4)]
    lines = [f"mov.b32 t{i}, {part:#x};" for i, part in enumerate(parts)]
    for out, shift in (("$0", 0), ("$1", 16)):
        lines += [
            f"shr.u32 w, $2, {shift};",
            "and.b32 s, w, 0x7777;",
            "prmt.b32 x, t0, t1, s;",
            "prmt.b32 y, t2, t3, s;",
            "shr.u32 s, w, 1;",
            "lop3.b32 s, s, 0x4444, 0x3210, 0xEA;",
            f"prmt.b32 {out}, x, y, s;",
        ]
    return " ".join(["{ .reg .b32 t<4>, s, w, x, y;", *lines, "}"])


@constexpr_function
def _pair_ptx(j):
    """Return instructions that make byte j of $1 and of $2, less 128, the float16 numbers $0."""
    selector = j | (4 + j) << 8
    return (
        f"{{ .reg .b32 s, t; prmt.b32 t, $1, $2, {selector:#x}; "
        "lop3.b32 t, t, 0x00FF00FF, 0x64006400, 0xEA; mov.b32 s, 0x64806480; sub.f16x2 $0, t, s; }"
    )


@constexpr_function
def _byte_ptx(byte):
    """Return instructions that make a byte of $1 the last bits of 2^23."""
    return f"{{ .reg .b32 m; mov.b32 m, 0x4B000000; prmt.b32 $0, $1, m, {0x7540 + byte:#x}; }}"
