"""The sets of kernels this processor runs, and which of them differ in an operation."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

try:
    from puna import _native
except ImportError:  # not built: then there is only the reference
    _native = None

#: All levels there are for this kind of processor, and for each the one whose vectors it computes with.
_VECTORS = (
    {"portable": "portable", "neon": "neon", "dotprod": "neon"}
    if platform.machine() in ("aarch64", "arm64")
    else {"portable": "portable", "avx2": "avx2", "avx_vnni": "avx2", "avx512": "avx512", "amx": "avx512"}
)


def missing_levels() -> list[str]:
    """Levels this processor lacks the instructions for; none where there is no extension."""
    return [] if _native is None else [level for level in _VECTORS if level not in _native.cpu_levels()]


def levels(operations: str) -> list[str]:
    """The levels to test `operations` at, so that no machine code is tested twice.

    `products` of packed matrices differ at every level, `vectors` (rows, attention, sampling) only where the
    vectors do, and `scalar` operations nowhere.
    """
    runnable = [] if _native is None else _native.cpu_levels()
    if operations == "products":
        return list(runnable)
    if operations == "vectors":
        return [level for level in runnable if _VECTORS[level] == level]
    assert operations == "scalar", operations
    return runnable[:1]


@contextmanager
def level(name: str) -> Iterator[None]:
    """Computes with the kernels of this level during the block."""
    before = _native.cpu_level()
    _native.set_cpu_level(name)
    try:
        yield
    finally:
        _native.set_cpu_level(before)
