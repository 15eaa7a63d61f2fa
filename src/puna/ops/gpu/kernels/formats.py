"""Weights inside kernels: from the planes of a packed matrix to tiles of 32 columns.

`puna.ops.gpu.packed` writes the planes and says what each holds. A row's codes come in chunks of 128 or 256
columns. Within a chunk, tile j has the columns 32 j to 32 j + 31, and the k-th word has the k-th column of
every tile: all words are shifted by the same number to unpack a tile, and tensor cores take the result as it
is. Scales of neighbouring rows are neighbours.

A weight is `level * scale + offset`: both factors are computed in float32, and rounded to the tile's type.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl

#: The interpreter multiplies bfloat16 tiles wrongly: there they are float32.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

#: The bits of 2^23 as float32, in which the last byte counts ones. An `or` and a subtraction convert a byte,
#: for which the conversion instruction takes eight times as long.
_BYTE = tl.constexpr(0x4B000000)
_BYTE_ZERO = tl.constexpr(8388608.0)


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
):
    """Return tile J of a chunk in each of some rows: [..., n, 32] of type OUT (float16 or float32).

    `row` int64 [..., n, 1], of `rows`; `chunk` [..., 1, 1] or a number, of `chunks`; `k` [32] in the last
    axis. Weights of 16 bits are returned in their own type.
    """
    if BITS == 16:
        weights = tl.load(codes + (row * chunks + chunk) * 128 + 32 * J + k)
    else:
        level = _level(_code(codes, high, row * chunks + chunk, k, J, BITS), LEVELS, OUT)
        chunk_tiles: tl.constexpr = 8 if BITS == 5 or BITS == 3 or BITS == 2 else 4
        middle: tl.constexpr = 0 if LEVELS == "e2m1" or LEVELS == "iq4" else LEVELS
        group = chunk * chunk_tiles + J
        if SCALES == "half":
            weights = level * tl.load(scales + _plane(group, rows) + row).to(OUT)
        elif SCALES == "exponent":
            power = tl.load(scales + _plane(group, rows) + row).to(tl.int16) << 10
            weights = level * power.to(tl.float16, bitcast=True).to(OUT)
        elif SCALES == "affine":
            scale, offset = _both(tl.load(scales + _plane(group, rows) + row))
            weights = tl.fma(level, _like(scale, level, OUT), _like(offset + scale * middle, level, OUT))
        elif SCALES == "bytes":
            word = tl.load(scales + _plane(group // 4, rows) + row)
            unit = tl.load(supers + _plane(group // 8, rows) + row).to(tl.float32)
            weights = level * (unit * _signed(word, J % 4)).to(OUT)
        elif SCALES == "bytes_affine":
            first = scales + _plane(group // 4 * 2, rows) + row
            unit, floor = _both(tl.load(supers + _plane(group // 8, rows) + row))
            scale = unit * _unsigned(tl.load(first), J % 4)
            offset = scale * middle - floor * _unsigned(tl.load(first + rows), J % 4)
            weights = tl.fma(level, _like(scale, level, OUT), _like(offset, level, OUT))
        elif SCALES == "halves":
            word = tl.load(scales + _plane(group // 2, rows) + row)
            unit = tl.load(supers + _plane(group // 8, rows) + row).to(tl.float32)
            first = (unit * _signed(word, J % 2 * 2)).to(OUT)
            second = (unit * _signed(word, J % 2 * 2 + 1)).to(OUT)
            weights = level * tl.where(k < 16, first, second)
        else:
            tl.static_assert(SCALES == "halves_affine")
            word = tl.load(scales + _plane(group // 2, rows) + row)
            unit, floor = _both(tl.load(supers + _plane(group // 8, rows) + row))
            low, up = word & 0x0F0F0F0F, (word >> 4) & 0x0F0F0F0F
            scale = unit * _unsigned(low, J % 2 * 2)
            offset = scale * middle - floor * _unsigned(up, J % 2 * 2)
            next_scale = unit * _unsigned(low, J % 2 * 2 + 1)
            next_offset = next_scale * middle - floor * _unsigned(up, J % 2 * 2 + 1)
            scale = tl.where(k < 16, scale.to(OUT), next_scale.to(OUT))
            weights = tl.fma(level, scale, tl.where(k < 16, offset.to(OUT), next_offset.to(OUT)))
    return weights


@triton.jit
def _code(codes, high, place, k, J: tl.constexpr, BITS: tl.constexpr):
    """Return the codes of tile J of the chunk at `place` [..., n, 1], from 0: int16 [..., n, 32]."""
    if BITS == 8:
        codes_of_tile = (tl.load(codes + place * 64 + (J // 2 * 32) + k) >> (J % 2 * 8)) & 255
    elif BITS == 4:
        codes_of_tile = (tl.load(codes + place * 32 + k) >> (4 * J)) & 15
    elif BITS == 6:
        top = tl.load(high + place * 32 + k).to(tl.int16)
        codes_of_tile = ((tl.load(codes + place * 32 + k) >> (4 * J)) & 15) | (((top >> (2 * J)) & 3) << 4)
    elif BITS == 5:
        top = tl.load(high + place * 32 + k).to(tl.int16)
        low = tl.load(codes + place * 64 + (J // 4 * 32) + k)
        codes_of_tile = ((low >> (J % 4 * 4)) & 15) | (((top >> J) & 1) << 4)
    elif BITS == 3:
        top = tl.load(high + place * 32 + k).to(tl.int16)
        codes_of_tile = ((tl.load(codes + place * 32 + k) >> (2 * J)) & 3) | (((top >> J) & 1) << 2)
    else:
        tl.static_assert(BITS == 2)
        codes_of_tile = (tl.load(codes + place * 32 + k) >> (2 * J)) & 3
    return codes_of_tile


@triton.jit
def _level(code, LEVELS: tl.constexpr, OUT: tl.constexpr):
    """Return the numbers that codes stand for: `code - LEVELS`, or an entry of the table of that name."""
    if LEVELS == "e2m1":
        # Sign, exponent and mantissa in float16's places count units of 2^-15.
        bits = ((code & 7) << 9) | ((code & 8) << 12)
        level = bits.to(tl.float16, bitcast=True).to(OUT) * 32768.0
    elif LEVELS == "iq4":
        odd, two, four, eight = (code & 1) != 0, (code & 2) != 0, (code & 4) != 0, (code & 8) != 0
        low = tl.where(two, tl.where(odd, -65.0, -83.0), tl.where(odd, -104.0, -127.0))
        up = tl.where(two, tl.where(odd, -10.0, -22.0), tl.where(odd, -35.0, -49.0))
        negative = tl.where(four, up, low)
        low = tl.where(two, tl.where(odd, 38.0, 25.0), tl.where(odd, 13.0, 1.0))
        up = tl.where(two, tl.where(odd, 113.0, 89.0), tl.where(odd, 69.0, 53.0))
        level = tl.where(eight, tl.where(four, up, low), negative).to(OUT)
    else:
        level = (code - LEVELS).to(OUT)
    return level


@triton.jit
def _plane(group, rows):
    """Return the distance of a group's scales from the plane's begin."""
    return group.to(tl.int64) * rows


@triton.jit
def _unsigned(word, BYTE: tl.constexpr):
    """Return a byte of each int32 word as float32."""
    bits = ((word >> (8 * BYTE)) & 255) | _BYTE
    return bits.to(tl.float32, bitcast=True) - _BYTE_ZERO


@triton.jit
def _signed(word, BYTE: tl.constexpr):
    """Return a byte of each int32 word as float32; bytes are stored with an offset of 128."""
    bits = ((word >> (8 * BYTE)) & 255) | _BYTE
    return bits.to(tl.float32, bitcast=True) - (_BYTE_ZERO + 128.0)


@triton.jit
def _both(word):
    """Return the two float16 numbers of each int32 word as float32, the lower half first."""
    low = (word & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True)
    up = (word >> 16).to(tl.int16).to(tl.float16, bitcast=True)
    return low.to(tl.float32), up.to(tl.float32)


@triton.jit
def _like(column, level, OUT: tl.constexpr):
    """Return `column` [..., n, 1] rounded to OUT, in the shape of `level`."""
    return tl.broadcast_to(column.to(OUT), level.shape)
