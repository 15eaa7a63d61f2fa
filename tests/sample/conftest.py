"""Sampling in numpy, and in C++ where the extension is built."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from puna import ops


@pytest.fixture(params=["reference", "cpu"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each implementation in turn, in use during the test."""
    if request.param == "cpu":
        pytest.importorskip("puna._native", reason="the C++ extension is not built", exc_type=ImportError)
    with ops.use(request.param):
        yield request.param
