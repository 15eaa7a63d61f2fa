"""What the fleet knows of a runner: whether it is a process of this machine is the launcher's affair."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from puna.errors import RunnerError
from puna.kvcache.contents import Contents
from puna.protocol import (
    Chunk,
    Done,
    Embed,
    Embedded,
    Evaluated,
    Generate,
    Load,
    Loaded,
    Pong,
    Prompted,
    Scored,
)
from puna.runner.client import LocalRunner
from puna.runner.tally import Tally


class LocalLauncher:
    """Starts a process for each runner; see `puna.server.fleet.runner.Launcher`."""

    async def launch(self) -> LocalRunner:
        return await LocalRunner.spawn()


class Runner(Protocol):
    """Runs one model. Of use after `load`; all methods belong to one event loop.

    What goes wrong with a request is raised as the error it is, and `RunnerError` when the runner dies or
    breaks its protocol, to all who wait for it.
    """

    @property
    def info(self) -> Loaded:
        """What was loaded."""

    @property
    def tally(self) -> Tally:
        """What was generated so far."""

    @property
    def alive(self) -> bool:
        """Whether it still runs and answers."""

    @property
    def memory_bytes(self) -> int:
        """What it takes now; unloading gives that back."""

    async def load(
        self,
        load: Load,
        on_progress: Callable[[int, int], None] | None = None,
        *,
        stall_timeout_s: float | None = 300.0,
    ) -> None:
        """Load the model; after `InsufficientMemoryError` another load can be tried.

        `on_progress` hears (bytes done, bytes in total); `stall_timeout_s` is how long there may be none.
        """

    def generate(
        self, request: Generate
    ) -> AsyncGenerator[Prompted | Evaluated | Scored | Chunk | Done, None]:
        """What is generated for `request`; closing the iterator stops it."""

    async def embed(self, request: Embed) -> list[Embedded]:
        """The vectors of the inputs, in their order."""

    async def render(self, request: Generate) -> Prompted:
        """What the prompt of `request` comes to."""

    async def ping(self, timeout_s: float = 10.0) -> Pong:
        """How busy it is; `RunnerError` when it does not say so in time."""

    async def grow(self, num_ctx: int, reserved: int) -> None:
        """Let requests have `num_ctx` tokens of context, leaving `reserved` bytes of memory free.

        `NotSupportedError` and `InsufficientMemoryError` where that takes loading again.
        """

    async def contents(self) -> list[Contents]:
        """What the model's caches hold."""

    def kill(self, reason: str) -> None:
        """Kill it because it hangs; its requests fail with `reason`."""

    async def close(self) -> None:
        """End it and release its resources."""

    def death(self) -> RunnerError:
        """What a runner died of that is not alive any more."""


class Launcher(Protocol):
    """Where runners come from."""

    async def launch(self) -> Runner:
        """A runner that waits for `load`. Raises `RunnerError` when none can be started."""
