"""Passes at loading, where kernels are compiled when they are first used."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from numpy.typing import NDArray

from puna.kvcache.types import F16_TYPES
from puna.model.load import LoadSettings, load_model
from puna.model.placement import DeviceStage
from puna.model.warm_up import warm_up
from puna.ops import Weight
from puna.ops.reference import Reference
from puna.ops.sampling import Draw
from tests.tiny.llama import TinyLlama, tiny_llama_gguf


class Compiling(Reference):
    """A backend that notes the rows of its passes, and can fail."""

    compiles = True

    def choose(self, rows: Sequence[Draw]) -> list[int | None]:
        self.drawn += [row.temperature for row in rows]
        return super().choose(rows)

    def __init__(self) -> None:
        self.drawn: list[float] = []
        self.device = "GPU 0"  # type: ignore[misc]
        self.rows: list[int] = []
        self.failure: Exception | None = None

    def embedding(self, tokens: NDArray, weight: Weight) -> NDArray:
        self.rows.append(len(tokens))
        if self.failure is not None:
            raise self.failure
        return super().embedding(tokens, weight)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_gguf(tmp_path_factory.mktemp("warm") / "llama.gguf", TinyLlama(layers=2, context=1024))


def test_loading_computes_a_prompt_and_a_step_and_says_how_far_it_is(path: Path) -> None:
    ops, heard = Compiling(), []
    loaded = load_model(
        path, LoadSettings(batch_size=50), ops=ops, progress=lambda done, total: heard.append((done, total))
    )
    assert ops.rows == [40, 1, 5, 12, 16]
    assert ops.drawn == [0, 1] * 5
    assert heard == sorted(heard)
    (total,) = {total for _, total in heard}
    assert heard[-1] == (total, total)
    assert sum(done >= loaded.weight_bytes for done, _ in heard) > len(ops.rows)
    load_model(path, ops=Reference())


def test_long_passes_are_left_out_where_the_processor_takes_part(path: Path) -> None:
    whole, part = Compiling(), Compiling()
    load_model(path, ops=whole)
    load_model(path, stages=[DeviceStage(part, 0, 1), DeviceStage(Reference(), 1, 2)])
    assert whole.rows == [40, 1, 300, 512, 5, 12, 64, 16]
    assert part.rows == [40, 1, 5, 12, 64, 16]


def test_failures_are_left_to_requests(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ops, heard = Compiling(), []
    ops.failure = ValueError("no such kernel")
    with caplog.at_level(logging.INFO, "puna.model"):
        load_model(path, ops=ops, progress=lambda done, total: heard.append((done, total)))
    assert ops.rows == [40]
    assert heard[-1][0] == heard[-1][1]
    assert "a pass that compiles kernels failed" in caplog.text


def test_a_lack_of_memory_is_an_error_of_loading(path: Path) -> None:
    ops = Compiling()
    ops.failure = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    with pytest.raises(RuntimeError, match="out of memory"):
        load_model(path, ops=ops)


def test_the_time_is_limited_and_logged(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ops = Compiling()
    model = load_model(path, LoadSettings(batch_size=1), ops=ops).model
    ops.rows.clear()
    seconds, steps = iter(range(0, 1000, 25)), []
    with caplog.at_level(logging.INFO, "puna.model"):
        warm_up(model, F16_TYPES, 2048, lambda *step: steps.append(step), lambda: float(next(seconds)))
    assert ops.rows == [40, 1]
    assert steps[-1] == (1, 1)
    assert [record.message for record in caplog.records] == ["compiled kernels in 100.0 s"]
