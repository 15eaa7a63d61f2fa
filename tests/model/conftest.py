"""Fixtures that run the tests of models on several backends."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from puna.ops import Backend, backend_named
from tests.processors import NOT_BUILT

#: Backends that models are tested on: the one that was chosen, or both that need no GPU.
_BACKENDS = [os.environ["PUNA_OPS"]] if "PUNA_OPS" in os.environ else ["reference", "cpu"]


@pytest.fixture(scope="module", params=_BACKENDS)
def ops(request: pytest.FixtureRequest) -> Backend:
    """Return each backend in turn."""
    if request.param == "cpu":
        pytest.importorskip("puna._native", reason=NOT_BUILT)
    return backend_named(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave split prompts and answers on the slow reference backend to `make test-thorough`.

    Caches decide how a prompt is cut, in the same way on both backends, and answers follow from the results
    for prompts.
    """
    folder = Path(__file__).parent
    for item in items:
        if not (item.path.is_relative_to(folder) and isinstance(item, pytest.Function)):
            continue  # this hook sees the tests of all folders
        params = item.callspec.params if hasattr(item, "callspec") else {}
        in_pieces = len(params.get("parts", ())) > 1 or params.get("chunk") == 10
        if (in_pieces or "greedy" in item.name) and params.get("ops") == "reference":
            item.add_marker(pytest.mark.thorough)
