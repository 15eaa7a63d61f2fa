"""Every implementation of the operations this machine can run."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest

from puna import ops

LEVELS = (
    ("portable", "neon", "dotprod")
    if platform.machine() in ("aarch64", "arm64")
    else ("portable", "avx2", "avx_vnni", "avx512", "amx")
)
KERNELS = [f"cpu-{level}" for level in LEVELS]


def switched(wanted: str) -> Iterator[str]:
    """Has the process use one implementation; skips where it cannot run."""
    name, _, level = wanted.partition("-")
    if not level:
        with ops.use(name):
            yield wanted
        return
    native = pytest.importorskip(
        "puna._native", reason="the C++ extension is not built", exc_type=ImportError
    )
    before = native.cpu_level()
    try:
        native.set_cpu_level(level)
    except ValueError:
        pytest.skip(f"this processor does not run {level} kernels")
    try:
        with ops.use(name):
            yield wanted
    finally:
        native.set_cpu_level(before)


@pytest.fixture(params=["reference", *KERNELS])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each implementation in turn, in use during the test."""
    yield from switched(request.param)


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each C++ implementation in turn, in use during the test."""
    yield from switched(request.param)
