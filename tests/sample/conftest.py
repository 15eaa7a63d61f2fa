"""Sampling in numpy, and in C++ where the extension is built."""

from __future__ import annotations

import pytest

from puna.ops import Backend, backend_named
from tests.processors import NOT_BUILT


@pytest.fixture(params=["reference", "cpu"])
def ops(request: pytest.FixtureRequest) -> Backend:
    """Return each backend in turn."""
    if request.param == "cpu":
        pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)
    return backend_named(request.param)
