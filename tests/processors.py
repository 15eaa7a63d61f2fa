"""The sets of kernels this processor runs, and which of them differ in an operation."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

try:
    from puna import _native
except ImportError:  # not built: then there is only the reference
    _native = None

#: Why tests of the kernels are skipped.
NOT_BUILT = "the C++ kernels are not built: install a C++ compiler and run PUNA_BUILD_KERNELS=1 make venv"

_ALL = (
    ("portable", "neon", "dotprod")
    if platform.machine() in ("aarch64", "arm64")
    else ("portable", "avx2", "avx_vnni", "avx512", "amx")
)


def missing_levels() -> list[str]:
    """Levels this processor lacks the instructions for; none where there is no extension."""
    return [] if _native is None else [level for level in _ALL if level not in _native.cpu_levels()]


def levels(*operations: str) -> list[str]:
    """The levels to test `operations` at: of those that run the same machine code in all of them, one.

    Without operations that is one level.
    """
    found: dict[tuple[str, ...], str] = {}
    for level in [] if _native is None else _native.cpu_levels():
        found.setdefault(tuple(_native.kernel_set(operation, level) for operation in operations), level)
    return list(found.values())


@contextmanager
def level(name: str) -> Iterator[None]:
    """Computes with the kernels of this level during the block."""
    before = _native.cpu_level()
    _native.set_cpu_level(name)
    try:
        yield
    finally:
        _native.set_cpu_level(before)
