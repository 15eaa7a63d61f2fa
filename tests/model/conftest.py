"""Models run on both backends."""

from __future__ import annotations

import pytest

from puna.ops import Backend, backend_named


@pytest.fixture(scope="module", params=["reference", "cpu"])
def ops(request: pytest.FixtureRequest) -> Backend:
    """Each backend in turn."""
    if request.param == "cpu":
        pytest.importorskip("puna._native", reason="the C++ kernels are not built")
    return backend_named(request.param)
