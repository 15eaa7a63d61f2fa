"""Weights of arbitrary bytes: packed, multiplied and read by all C++ code that handles a file's blocks.

Finite results must be those of the reference for the same bytes.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from puna.gguf import GGMLType, dequantize
from puna.ops import Weight, backend_named
from tests.fuzz.case import Bounds

BOUNDS = Bounds(seconds=3.0, memory=64 << 20)

_TYPES = [kind for kind in GGMLType if kind.name not in ("I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K")]


def fuzz(dice: random.Random, folder: Path) -> None:
    kind = dice.choice(_TYPES)
    rows, blocks = dice.choice((1, 2, 7, 8, 9, 15, 16, 17, 33, 64)), dice.randint(1, 5)
    columns = blocks * max(kind.block_size, dice.choice((1, 3, 8)) if kind.block_size == 1 else 1)
    content = _bytes(dice, kind.nbytes(rows * columns))
    (folder / f"{kind.name}-{rows}x{columns}").write_bytes(content)
    data = np.frombuffer(content, np.uint8)
    ops = backend_named("cpu")
    weight = Weight("w", data, kind, (rows, columns))
    table = ops.embedding(np.arange(rows, dtype=np.int32), Weight("e", data, kind, (rows, columns)))
    with np.errstate(all="ignore"):
        expected = dequantize(data, kind).reshape(rows, columns)
        assert np.array_equal(table, expected, equal_nan=True), (
            "an embedding differs from the row in the file"
        )
        ops.pack(weight)
        found = ops.linear(np.ones((dice.choice((1, 2, 9)), columns), np.float32), weight)
        exact, sizes = expected.sum(axis=1, dtype=np.float64), np.abs(expected).sum(axis=1, dtype=np.float64)
    halves = kind is GGMLType.MXFP4_PAIRS  # packed as half precision
    finite = sizes < (6e4 if halves else 1e30)
    least = columns * 2.0**-24 if halves else 1e-30
    close = np.abs(found - exact)[:, finite] <= 0.02 * sizes[finite] + least
    assert close.all(), "a product differs from that of the file's values"


def _bytes(dice: random.Random, count: int) -> bytes:
    """Return noise, or one byte repeated: the largest and smallest codes and scales, NaN, infinity."""
    noise = bytearray(dice.randbytes(count))
    match dice.randrange(3):
        case 0:
            return bytes([dice.choice((0, 1, 0x7F, 0x80, 0x7C, 0xFF))]) * count
        case 1:
            for _ in range(dice.randint(1, 8)):
                noise[dice.randrange(count)] = dice.choice((0, 0x7C, 0x7F, 0x80, 0xFC, 0xFF))
    return bytes(noise)
