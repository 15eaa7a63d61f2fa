"""The kernels of a node and its speed, as its agent finds them in its own process."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from puna.ops import default_backend
from puna.system.processors import usable_processors

#: Memory that each processor reads to tell the speed of a node.
_READ_BYTES: Final = 16 << 20


def kernels() -> str:
    """Return the identity of the kernels that models compute with here."""
    return default_backend().kernels


def read_speed() -> float:
    """Return the bytes a second that all processors together read from memory, as decoding does."""
    count = usable_processors()
    parts = [np.ones(_READ_BYTES // 8) for _ in range(count)]
    best_s = float("inf")
    with ThreadPoolExecutor(count) as pool:
        for _ in range(3):
            began = time.monotonic()
            list(pool.map(np.sum, parts))
            best_s = min(best_s, time.monotonic() - began)
    return count * _READ_BYTES / max(best_s, 1e-6)
