"""Fixtures that run a test on every backend this machine has, each machine code once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ops.device_ops import TORCH
from tests.ops.torch_ops import REFERENCE, TorchOps, cpu
from tests.processors import level, levels


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrise `ops` and `kernels` with the kernel sets that differ in the operations a module is about.

    `pytest.mark.kernels_of` names the operations; the default is those whose kernels differ with the
    vectors. All but the best kernels are `slow`.
    """
    mark = metafunc.definition.get_closest_marker("kernels_of")
    operations = mark.args if mark else ("attention", "rms_norm", "rope", "store_rows")
    *others, best = [f"cpu-{name}" for name in levels(*operations)] or [None]
    found: list[Any] = [pytest.param(name, marks=pytest.mark.slow) for name in others]
    found += [best] if best else []
    if "ops" in metafunc.fixturenames:
        metafunc.parametrize("ops", ["reference", "torch", *found], indirect=True)
    if "kernels" in metafunc.fixturenames:
        metafunc.parametrize("kernels", found, indirect=True)


@pytest.fixture
def ops(request: pytest.FixtureRequest) -> Iterator[TorchOps]:
    """Return each backend in turn, the one with kernels once for each kernel set."""
    kernels = request.param.partition("-")[2]
    if not kernels:
        yield TORCH if request.param == "torch" else REFERENCE
        return
    with level(kernels):
        yield cpu()


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Iterator[TorchOps]:
    """Return the backend with kernels, once for each kernel set."""
    with level(request.param.partition("-")[2]):
        yield cpu()
