"""Every implementation of the operations this machine can run, each machine code once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from puna import ops
from tests.processors import level, levels


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Gives `implementation` and `kernels` what differs in the operations that the module is about.

    Which these are says `pytest.mark.kernels_of`; without it, those whose kernels differ with the vectors.
    """
    mark = metafunc.definition.get_closest_marker("kernels_of")
    kernels = [
        f"cpu-{name}"
        for name in levels(*(mark.args if mark else ("attention", "rms_norm", "rope", "store_rows")))
    ]
    if "implementation" in metafunc.fixturenames:
        metafunc.parametrize("implementation", ["reference", *kernels], indirect=True)
    if "kernels" in metafunc.fixturenames:
        metafunc.parametrize("kernels", kernels, indirect=True)


@pytest.fixture
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each implementation in turn, in use during the test."""
    name, _, kernels = request.param.partition("-")
    if not kernels:
        with ops.use(name):
            yield name
        return
    with level(kernels), ops.use(name):
        yield request.param


@pytest.fixture
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each C++ implementation in turn, in use during the test."""
    name, _, kernels = request.param.partition("-")
    with level(kernels), ops.use(name):
        yield request.param
