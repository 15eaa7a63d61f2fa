"""Streams of a request: several merged into one, and its progress before the first token."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from puna.protocol import Evaluated
from puna.server.fleet.loading import ProgressCallback
from puna.server.fleet.resident import Runner
from puna.server.running import Running

T = TypeVar("T")

#: Items that may wait to be taken.
_AHEAD = 64


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """The items of all `streams`, which run at the same time; an error of one ends all.

    They run ahead of who takes the items by a few of them, no more. Closing it, or cancelling the task in it,
    closes them.
    """
    if len(streams) == 1:  # the usual case needs no task of its own
        async with contextlib.aclosing(streams[0]) as items:
            async for item in items:
                yield item
        return
    arrived: asyncio.Queue[T | asyncio.Task[None]] = asyncio.Queue()
    room = asyncio.Semaphore(_AHEAD)

    async def pump(stream: AsyncGenerator[T, None]) -> None:
        async with contextlib.aclosing(stream):
            async for item in stream:
                await room.acquire()
                arrived.put_nowait(item)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    for task in tasks:
        task.add_done_callback(arrived.put_nowait)
    try:
        left = len(tasks)
        while left:
            came = await arrived.get()
            if isinstance(came, asyncio.Task):
                came.result()
                left -= 1
            else:
                room.release()
                yield came
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LoadProgress(msgspec.Struct, frozen=True):
    """Bytes of the model in all and in place, and milliseconds since the request arrived."""

    total: int
    processed: int
    time_ms: float


class PromptProgress(msgspec.Struct, frozen=True):
    """Tokens of the prompt: in all, from the cache, and evaluated with those; milliseconds since its turn.

    llama.cpp's.
    """

    total: int
    cache: int
    processed: int
    time_ms: float


@dataclass(frozen=True)
class Progress:
    """Progress of the load or of a prompt; `sample` is the first answer to that prompt."""

    load_progress: LoadProgress | None = None
    prompt_progress: PromptProgress | None = None
    sample: int = 0

    @classmethod
    def of(cls, event: Evaluated, sample: int) -> Progress:
        counts = PromptProgress(event.total, event.cached, event.done, _ms(event.duration))
        return cls(prompt_progress=counts, sample=sample)

    @property
    def fields(self) -> dict[str, Any]:
        """As replies have it."""
        given = {"load_progress": self.load_progress, "prompt_progress": self.prompt_progress}
        return {name: value for name, value in given.items() if value is not None}


class RunnerLease:
    """Getting the runner for a request, which `held` holds from then on."""

    def __init__(
        self,
        use: Callable[[ProgressCallback], contextlib.AbstractAsyncContextManager[Runner]],
        held: contextlib.AsyncExitStack,
        running: Running,
        arrived_ns: int,
    ) -> None:
        self._use = use
        self._held = held
        self._running = running
        self._arrived_ns = arrived_ns  # by `time.perf_counter_ns`
        self._runner: Runner | None = None
        self._news = asyncio.Event()
        self._heard: Progress | None = None  # only the last counts

    async def runner(self) -> Runner:
        """The runner, waited for unless that is done. Raises what loading met."""
        if self._runner is None:
            with self._running.waiting():
                self._runner = await self._held.enter_async_context(self._use(self._hear))
        return self._runner

    async def steps(self) -> AsyncGenerator[Progress, None]:
        """The progress of the load. Raises what that met."""
        loading = asyncio.create_task(self.runner())
        loading.add_done_callback(lambda _: self._news.set())
        try:
            while not loading.done() or self._heard is not None:
                await self._news.wait()
                self._news.clear()
                if self._heard is not None:
                    heard, self._heard = self._heard, None
                    yield heard
            await loading
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)

    def _hear(self, done: int, total: int) -> None:
        self._heard = Progress(LoadProgress(total, done, _ms(time.perf_counter_ns() - self._arrived_ns)))
        self._news.set()


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)
