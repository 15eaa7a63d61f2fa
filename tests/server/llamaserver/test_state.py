"""Scales of adapters, set for a whole model."""

from __future__ import annotations

from typing import Any

import pytest

from puna.errors import RequestError
from puna.options import AdapterFile
from puna.server.llamaserver.state import scales_of

ADAPTERS = [AdapterFile("/a.gguf", "a"), AdapterFile("/b.gguf", "b", 0.5)]


@pytest.mark.parametrize(
    ("given", "scales"),
    [
        ([], [0.0, 0.0]),
        ([{"id": 1, "scale": 2}], [0.0, 2.0]),
        ([{"id": 0, "scale": 0.2}, {"id": 1, "scale": 0.8}], [0.2, 0.8]),
    ],
)
def test_adapters_that_are_not_listed_have_the_scale_0(given: Any, scales: list[float]) -> None:
    assert scales_of(given, ADAPTERS) == scales


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": 0, "scale": 1}, "the body must be a list"),
        ([{"id": 0, "scale": 1}] * 65, "the body must be a list"),
        ([{"id": 2, "scale": 1}], "the model has no adapter 2: it has 2"),
        ([{"id": True, "scale": 1}], "the model has no adapter True"),
        ([{"id": 0, "scale": 1e9}], "not a valid scale"),
        ([{"id": 0, "scale": True}], "an adapter has an id and a scale"),
        ([5], "an adapter has an id and a scale"),
    ],
)
def test_other_lists_are_refused(given: Any, message: str) -> None:
    with pytest.raises(RequestError) as error:
        scales_of(given, ADAPTERS)
    assert message in str(error.value)
