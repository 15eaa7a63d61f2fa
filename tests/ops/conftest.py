"""Every backend this machine can run, each machine code once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.ops.torch_ops import REFERENCE, TorchOps, cpu
from tests.processors import level, levels


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives `ops` and `kernels` what differs in the operations that the module is about.

    Which these are says `pytest.mark.kernels_of`; without it, those whose kernels differ with the vectors.
    All but the best of the kernels are `slow`.
    """
    mark = metafunc.definition.get_closest_marker("kernels_of")
    operations = mark.args if mark else ("attention", "rms_norm", "rope", "store_rows")
    *others, best = [f"cpu-{name}" for name in levels(*operations)] or [None]
    found: list[Any] = [pytest.param(name, marks=pytest.mark.slow) for name in others]
    found += [best] if best else []
    if "ops" in metafunc.fixturenames:
        metafunc.parametrize("ops", ["reference", *found], indirect=True)
    if "kernels" in metafunc.fixturenames:
        metafunc.parametrize("kernels", found, indirect=True)


@pytest.fixture
def ops(request: pytest.FixtureRequest) -> Iterator[TorchOps]:
    """Each backend in turn, that of the kernels with each set of them."""
    kernels = request.param.partition("-")[2]
    if not kernels:
        yield REFERENCE
        return
    with level(kernels):
        yield cpu()


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Iterator[TorchOps]:
    """The backend of the kernels with each set of them in turn."""
    with level(request.param.partition("-")[2]):
        yield cpu()
