"""The model of the runner tests, and a runner that has loaded it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from puna.protocol import Load
from tests.forks.asking import forking_process
from tests.forks.runners import forked_runners
from tests.runner.running import Use, WithRunner, idle, started
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module", autouse=True)
def _forked() -> Iterator[None]:
    """Spare the tests of this folder most of the time that model processes take to start."""
    if sys.platform != "linux":
        yield
        return
    with forked_runners(forking_process()):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model whose answers never end, slow enough that nothing finishes before it is stopped."""
    config = TinyLlama(hidden=256, feed_forward=512, layers=4, context=2048)
    return tiny_llama_gguf(tmp_path_factory.mktemp("runner") / "tiny.gguf", config, endless=True)


@pytest.fixture(scope="module")
def with_shared_runner(model: Path) -> Iterator[WithRunner]:
    """Return a function that runs a test with the shared runner, for tests that leave it as they found it."""
    with asyncio.Runner() as loop:
        runner = loop.run(started(Load(path=str(model), num_ctx=2048, parallel=4)))

        def run_with_it(use: Use) -> None:
            loop.run(asyncio.wait_for(use(runner), PATIENCE_S))
            loop.run(asyncio.wait_for(idle(runner), PATIENCE_S))

        yield run_with_it
        loop.run(runner.close())
