"""Models run on both backends."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", params=[pytest.param("reference", marks=pytest.mark.slow), "cpu"])
def implementation(request: pytest.FixtureRequest):
    if request.param == "cpu":
        pytest.importorskip("puna._native", reason="the C++ kernels are not built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUNA_OPS", request.param)
        yield request.param
