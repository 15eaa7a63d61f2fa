"""Runners that run out of memory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from puna.errors import (
    OutOfMemoryError,
)
from puna.protocol import Chunk, Generate, Prompted
from puna.runner.client import LocalRunner
from tests.runner.running import LONG, collect, with_runner
from tests.tiny.llama import TinyLlama, tiny_llama_gguf

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model whose activations take 128 MiB each in a step of 128 rows, the smallest that is tried."""
    config = TinyLlama(hidden=16, heads=2, kv_heads=1, feed_forward=1 << 18, layers=2, context=2048)
    return tiny_llama_gguf(tmp_path_factory.mktemp("runner") / "wide.gguf", config, endless=True)


PROMPT = [1] * 1500


def limit_memory(pid: int, count: int) -> None:
    """Limit the process to `count` bytes of address space beyond what it has now."""
    process = psutil.Process(pid)
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + count, psutil.RLIM_INFINITY))


@pytest.mark.skipif(not hasattr(psutil, "RLIMIT_AS"), reason="limits of other processes need Linux")
def test_requests_needing_too_much_memory_get_an_error(wide: Path) -> None:
    async def use(runner: LocalRunner) -> None:
        await collect(runner, "hello")
        limit_memory(runner.pid, 40 << 20)
        requests = [collect(runner, [token, *PROMPT]) for token in (2, 3)]
        for error in await asyncio.gather(*requests, return_exceptions=True):
            assert isinstance(error, OutOfMemoryError), error
            assert "out of memory; use a smaller num_ctx or num_batch" in str(error)
        try:
            assert (await collect(runner, "hello"))[0]
        except OutOfMemoryError:  # the process had too little left and ended itself
            assert not runner.alive

    with_runner(wide, use)


@pytest.mark.skipif(not hasattr(psutil, "RLIMIT_AS"), reason="limits of other processes need Linux")
def test_process_without_memory_for_a_message_fails_all_requests_and_ends(model: Path) -> None:
    async def use(runner: LocalRunner) -> None:
        stream = runner.generate(Generate(prompt="hello", options=LONG))
        assert isinstance(await anext(stream), Prompted)
        assert isinstance(await anext(stream), Chunk)
        limit_memory(runner.pid, 0)
        with pytest.raises(OutOfMemoryError):
            await collect(runner, [1] * 20_000_000)
        with pytest.raises(OutOfMemoryError):
            async for _ in stream:
                pass
        assert not runner.alive
        with pytest.raises(OutOfMemoryError, match="out of memory; use a smaller num_ctx"):
            await collect(runner, "hello")

    with_runner(model, use)
