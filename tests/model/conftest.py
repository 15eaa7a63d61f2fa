"""Models run on both implementations of the operations."""

from __future__ import annotations

import pytest

from puna import ops


@pytest.fixture(scope="module", params=[pytest.param("reference", marks=pytest.mark.slow), "cpu"])
def implementation(request: pytest.FixtureRequest):
    if request.param == "cpu":
        pytest.importorskip("puna._native", reason="the C++ kernels are not built")
    with ops.use(request.param):
        yield request.param
