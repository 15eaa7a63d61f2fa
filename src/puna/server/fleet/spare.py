"""A runner process that waits for its model with everything imported, so that loading one starts none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from puna.errors import RunnerError
from puna.machine import available_memory, process_memory
from puna.runner.client import Runner

#: With less memory than this free, a spare process is not worth what it takes.
_LEAST_FREE_BYTES = 1 << 30
#: How often it is looked whether models are idle, and how often at most.
_LOOK_S, _LOOKS = 1.0, 30
#: How long a process may take to import everything.
_START_TIMEOUT_S = 60.0

_log = logging.getLogger(__name__)


class SpareRunner:
    """Keeps one waiting process, if `wanted`. All methods belong to one event loop.

    It is started when `idle` says that there is nothing it would slow down, or after half a minute, and only
    if memory is left when models have taken the `promised` bytes that they still may.
    """

    def __init__(
        self, wanted: bool, idle: Callable[[], bool], promised: Callable[[], Awaitable[int]]
    ) -> None:
        self._wanted = wanted
        self._idle = idle
        self._promised = promised
        self._runner: Runner | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = False

    @property
    def process_bytes(self) -> int:
        """Memory of the waiting process; 0 without one."""
        return process_memory(self._runner.pid) if self._runner is not None and self._runner.alive else 0

    def refill(self) -> None:
        """Have a process started in the background, unless one waits already."""
        waits = self._runner is not None and self._runner.alive
        if self._wanted and not waits and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._refill())

    async def take(self) -> Runner:
        """The process that waits, else a new one. Raises `RunnerError` when none can be started."""
        await self._settle()
        runner, self._runner = self._runner, None
        if runner is not None:
            try:
                await runner.ping(_START_TIMEOUT_S)  # it may be importing still
            except RunnerError as error:
                _log.warning("the spare runner is gone, another is started: %s", error)
                await runner.close()
            except BaseException:
                await runner.close()
                raise
            else:
                return runner
        return await Runner.spawn()

    async def close(self) -> None:
        """End the process; there will be no other."""
        self._wanted = False
        await self._settle()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.close()

    async def _settle(self) -> None:
        """Give up waiting for a good moment; a process that is being started is waited for."""
        if self._task is not None:
            if not self._starting:
                self._task.cancel()
            await asyncio.wait({self._task})

    async def _refill(self) -> None:
        for _ in range(_LOOKS):
            if self._idle():
                break
            await asyncio.sleep(_LOOK_S)
        if available_memory() - await self._promised() < _LEAST_FREE_BYTES:
            return
        self._starting = True
        try:
            if self._runner is not None:
                await self._runner.close()
            self._runner = await Runner.spawn()
        except RunnerError as error:
            _log.warning("there is no spare runner: %s", error)
        finally:
            self._starting = False
