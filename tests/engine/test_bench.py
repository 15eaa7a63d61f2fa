"""Measurements of an engine cover what they claim; no figure is checked, only that there is one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from puna.engine.bench import Bench
from puna.engine.room import REMEMBERED
from tests.tiny.llama import tiny_llama_gguf


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tiny_llama_gguf(tmp_path / "tiny.gguf"), context=200, parallel=2)
    yield bench
    bench.close()


def test_prompts_and_decoding_are_measured(bench: Bench) -> None:
    assert bench.read(2, 50) > 0
    assert bench.decode(2, 5) > 0


def test_decoding_continues_from_a_filled_cache(bench: Bench) -> None:
    bench.read(1, 50)
    bench.fill(150)
    assert 150 in _lengths(bench)
    for _ in range(2):  # raises if the tokens had to be evaluated
        assert bench.decode_filled(5) > 0
    assert max(_lengths(bench)) == 155


def _lengths(bench: Bench) -> list[int]:
    """Return the lengths of all cache sequences."""
    return [bench._engine.cache.length(row) for row in range(2 + REMEMBERED)]
