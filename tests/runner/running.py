"""Runner processes for tests, started as the fleet starts them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil

from puna.options import Options
from puna.protocol import Chunk, Done, Generate, Load
from puna.runner.client import LocalRunner
from tests.waiting import PATIENCE_S

GREEDY = Options(temperature=0, num_predict=8)
LONG = Options(temperature=0, num_predict=-1)

Use = Callable[[LocalRunner], Awaitable[None]]
WithRunner = Callable[[Use], None]


async def started(
    load: Load,
    on_progress: Callable[[int, int], None] | None = None,
    *,
    stall_timeout_s: float | None = 300.0,
) -> LocalRunner:
    """Start a runner with a model as the fleet does, ending its process if loading fails or is cancelled."""
    runner = await LocalRunner.spawn()
    try:
        await runner.load(load, on_progress, stall_timeout_s=stall_timeout_s)
    except BaseException:
        await runner.close()
        raise
    return runner


def with_runner(model: Path, use: Use, **load: int | str) -> None:
    """Start a runner, use it and close it, and check that its process is gone."""

    async def scenario() -> None:
        runner = await started(Load(path=str(model), **{"num_ctx": 2048, "parallel": 4, **load}))
        pid = runner.pid
        try:
            await asyncio.wait_for(use(runner), PATIENCE_S)
        finally:
            await runner.close()
        assert not psutil.pid_exists(pid)

    asyncio.run(scenario())


async def collect(
    runner: LocalRunner, prompt: str | list[int], options: Options = GREEDY
) -> tuple[str, Done]:
    text, done = "", None
    async for item in runner.generate(Generate(prompt=prompt, options=options)):
        if isinstance(item, Done):
            done = item
        elif isinstance(item, Chunk):
            text += item.text
    assert done is not None
    return text, done


async def idle(runner: LocalRunner) -> None:
    """Wait until the runner runs no request."""
    while (await runner.ping()).active:
        await asyncio.sleep(0.01)


async def tokens_of(runner: LocalRunner, request: Generate) -> list[int]:
    """Return the tokens that a runner generates."""
    found: list[int] = []
    async with contextlib.aclosing(runner.generate(request)) as events:
        async for event in events:
            if isinstance(event, Chunk):
                found += event.tokens
    return found
