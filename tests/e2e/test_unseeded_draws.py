"""The check in tests/conftest.py that finds tests whose answers are sampled without a seed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import puna
from tests.e2e.servers import Server

pytestmark = pytest.mark.samples


def unseeded_draws() -> int:
    return Path(os.environ["TESTS_UNSEEDED"]).stat().st_size


@pytest.mark.parametrize(
    ("options", "unseeded"), [({}, True), ({"seed": 7}, False), ({"temperature": 0}, False)], ids=str
)
def test_unseeded_draws_of_the_library_are_found(
    options: dict[str, Any], unseeded: bool, tiny_file: Path
) -> None:
    with puna.load(tiny_file, num_ctx=64, parallel=1) as model:
        model.generate("hello", num_predict=2, **options)
    assert bool(unseeded_draws()) == unseeded


@pytest.mark.e2e
def test_unseeded_draws_of_a_server_are_found(server: Server) -> None:
    for options, unseeded in (({"seed": 7}, False), ({"temperature": 0}, False), ({"seed": -1}, True)):
        server.client.generate("tiny", "hello", options={"num_predict": 2, **options})
        assert bool(unseeded_draws()) == unseeded, options
