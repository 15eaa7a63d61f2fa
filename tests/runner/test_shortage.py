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
    """Each activation takes 64 MiB in a batch of 256 tokens, the least that are read at once."""
    config = TinyLlama(hidden=32, feed_forward=65536, layers=2, context=2048)
    return tiny_llama_gguf(tmp_path_factory.mktemp("runner") / "wide.gguf", config, endless=True)


PROMPT = [1] * 1500


def leave_memory(pid: int, count: int) -> None:
    """The process may have `count` bytes of address space more than it has now."""
    process = psutil.Process(pid)
    process.rlimit(psutil.RLIMIT_AS, (process.memory_info().vms + count, psutil.RLIM_INFINITY))


@pytest.mark.skipif(not hasattr(psutil, "RLIMIT_AS"), reason="limits of other processes need Linux")
def test_requests_that_want_too_much_memory_are_told_so(wide: Path) -> None:
    async def use(runner: LocalRunner) -> None:
        await collect(runner, "hello")
        leave_memory(runner.pid, 40 << 20)  # they need three activations, of 32 MiB even in half a batch
        requests = [collect(runner, [token, *PROMPT]) for token in (2, 3)]
        for error in await asyncio.gather(*requests, return_exceptions=True):
            assert isinstance(error, OutOfMemoryError), error
            assert "out of memory; use a smaller num_ctx or num_batch" in str(error)
        try:
            assert (await collect(runner, "hello"))[0]
        except OutOfMemoryError:  # so little was left that the process gave itself up
            assert not runner.alive

    with_runner(wide, use)


@pytest.mark.skipif(not hasattr(psutil, "RLIMIT_AS"), reason="limits of other processes need Linux")
def test_a_process_that_cannot_even_read_a_message_says_so_to_all_and_ends(model: Path) -> None:
    async def use(runner: LocalRunner) -> None:
        stream = runner.generate(Generate(prompt="hello", options=LONG))
        assert isinstance(await anext(stream), Prompted)
        assert isinstance(await anext(stream), Chunk)
        leave_memory(runner.pid, 0)
        with pytest.raises(OutOfMemoryError):
            await collect(runner, [1] * 20_000_000)
        with pytest.raises(OutOfMemoryError):
            async for _ in stream:
                pass
        assert not runner.alive
        with pytest.raises(OutOfMemoryError, match="out of memory; use a smaller num_ctx"):
            await collect(runner, "hello")

    with_runner(model, use)
