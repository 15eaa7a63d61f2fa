"""Matrices of random bytes in every block type, so that extreme numbers and scales occur."""

from __future__ import annotations

import gguf
import numpy as np
from numpy.typing import NDArray

from puna.gguf import GGMLType

try:
    from puna import _native
except ImportError:  # not built: the tests of kernels are skipped
    _native = None  # type: ignore[assignment]

# Byte offsets of a block's float16 factors.
_FACTORS: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (),
    "IQ1_S": (0,), "IQ1_M": (), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,),
    "IQ3_XXS": (0,), "IQ3_S": (0,),
}  # fmt: skip

BLOCK_TYPES = tuple(GGMLType[name] for name in _FACTORS)
FLOAT_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16)
ALL_TYPES = FLOAT_TYPES + BLOCK_TYPES


def multiplied_as_integers(kind: GGMLType) -> bool:
    """Whether the kernels in use multiply matrices of this 16-bit float type as integers."""
    half = kind in (GGMLType.F16, GGMLType.BF16)
    return half and _native.kernel_set("linear", _native.cpu_level(), int(kind)) in ("avx2", "avx512")


def random_bytes(
    kind: GGMLType, rows: int, columns: int, rng: np.random.Generator, factor: float = 0.01
) -> NDArray[np.uint8]:
    """Return the bytes of a matrix [rows, columns] whose factors are about `factor`, of either sign."""
    if kind in FLOAT_TYPES:
        values = rng.standard_normal((rows, columns)).astype(np.float32)
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType(int(kind))).reshape(-1).view(np.uint8)
    blocks = rng.integers(0, 256, (rows * columns // kind.block_size, kind.type_size), dtype=np.uint8)

    def factors() -> NDArray[np.uint8]:
        values = rng.uniform(0.5, 1.5, len(blocks)) * rng.choice([-1, 1], len(blocks)) * factor
        return values.astype("<f2").view(np.uint8).reshape(-1, 2)

    for offset in _FACTORS[kind.name]:
        blocks[:, offset : offset + 2] = factors()
    if kind is GGMLType.IQ1_M:  # its factor is spread over the upper halves of four bytes
        halves = factors()
        nibbles = np.stack([halves & 15, halves >> 4], axis=2).reshape(-1, 4)
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | nibbles << 4
    if kind is GGMLType.MXFP4:
        blocks[:, 0] = rng.integers(115, 130, len(blocks))
    return blocks.reshape(-1)


def reference_values(data: NDArray[np.uint8], kind: GGMLType, rows: int) -> NDArray[np.float32]:
    """Decode these bytes with the `gguf` package: float32 [rows, columns]."""
    stored = data.reshape(rows, -1)
    if kind is GGMLType.F32:
        return stored.view(np.float32)
    return gguf.quants.dequantize(stored, gguf.GGMLQuantizationType(int(kind)))
