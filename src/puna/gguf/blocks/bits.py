"""Small codes packed into bytes.

Every format packs the same way: bytes form runs of `run`; the lowest `bits` of a run's bytes hold its first
`run` codes, the next higher bits the following `run` codes, and so on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def unpack(packed: NDArray[np.uint8], bits: int, run: int) -> NDArray[np.uint8]:
    """Codes [n, 8 // bits * bytes] of `packed` [n, bytes]."""
    if bits == 1 and run == 1:
        return np.unpackbits(packed, axis=-1, bitorder="little")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    runs = packed.reshape(len(packed), packed.shape[1] // run, 1, run)
    codes: NDArray[np.uint8] = (runs >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(packed), packed.shape[1] * (8 // bits))


def pack(codes: NDArray[np.uint8], bits: int, run: int) -> NDArray[np.uint8]:
    """Bytes [n, codes * bits // 8] of `codes` [n, codes]: the inverse of `unpack`.

    Codes must be below `2**bits`.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    groups = codes.reshape(len(codes), -1, 8 // bits, run)
    joined: NDArray[np.uint8] = np.bitwise_or.reduce(groups << shifts, axis=2)
    return joined.reshape(len(codes), codes.shape[1] * bits // 8)
