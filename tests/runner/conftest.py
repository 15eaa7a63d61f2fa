"""The model of the tests of runners, and a runner that has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from puna.protocol import Load
from tests.runner.running import Use, WithRunner, idle, started
from tests.tiny.llama import TinyLlama, tiny_llama_gguf
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Endless, and so slow that nothing ends before it is stopped."""
    config = TinyLlama(hidden=256, feed_forward=512, layers=4, context=2048)
    return tiny_llama_gguf(tmp_path_factory.mktemp("runner") / "tiny.gguf", config, endless=True)


@pytest.fixture(scope="module")
def with_shared_runner(model: Path) -> Iterator[WithRunner]:
    """Uses the one runner of tests that leave theirs as they find it."""
    with asyncio.Runner() as loop:
        runner = loop.run(started(Load(path=str(model), num_ctx=2048, parallel=4)))

        def with_it(use: Use) -> None:
            loop.run(asyncio.wait_for(use(runner), PATIENCE_S))
            loop.run(asyncio.wait_for(idle(runner), PATIENCE_S))

        yield with_it
        loop.run(runner.close())
