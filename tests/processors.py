"""The kernel levels this processor can run, and which of them differ for an operation."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

try:
    from puna import _native
except ImportError:  # not built: only the reference exists
    _native = None

#: Reason for skipping the tests of the kernels.
NOT_BUILT = "the C++ kernels are not built: install a C++ compiler and run PUNA_BUILD_KERNELS=1 make venv"

_ALL = (
    ("portable", "neon", "dotprod")
    if platform.machine() in ("aarch64", "arm64")
    else ("portable", "avx2", "avx_vnni", "avx512", "amx")
)


def missing_levels() -> list[str]:
    """Return the levels whose instructions this processor lacks; none without the extension."""
    return [] if _native is None else [level for level in _ALL if level not in _native.cpu_levels()]


def levels(*operations: str) -> list[str]:
    """Return the levels to test `operations` at: one of each group that runs the same machine code in all of
    them.

    Without operations, that is a single level.
    """
    found: dict[tuple[str, ...], str] = {}
    for level in [] if _native is None else _native.cpu_levels():
        found.setdefault(tuple(_native.kernel_set(operation, level) for operation in operations), level)
    return list(found.values())


@contextmanager
def level(name: str) -> Iterator[None]:
    """Compute with the kernels of this level within the block."""
    before = _native.cpu_level()
    _native.set_cpu_level(name)
    try:
        yield
    finally:
        _native.set_cpu_level(before)
