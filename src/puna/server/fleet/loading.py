"""Loads that requests wait for: one at a time, clients taking turns, with pauses after crashes in a row.

Two at a time would each be promised memory that the other takes. A load that interactive requests wait for
comes before all that only batch requests wait for, except one that has begun.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from puna.errors import RunnerError, ServerBusyError
from puna.protocol import Priority
from puna.runner.client import ProgressCallback
from puna.server.fleet.resident import ResidentModel, Runner
from puna.turns import ClientRotation, Turn

#: Number of crashes in a row after which the next request still loads the model at once.
FORGIVEN = 2
#: After one more crash, the model is refused for this time, which doubles with each further crash.
FIRST_PAUSE_S = 5.0
#: Maximum time for which a model is refused.
LONGEST_PAUSE_S = 300.0
#: Crashes further apart than this are not in a row.
APART_S = 600.0


@dataclass
class _Row:
    count: int
    last_s: float
    how: str


class Crashes:
    """Crashes in a row of each model file. Times are in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def crashed(self, path: str, how: str, now_s: float, *, after_success: bool) -> int:
        """Record a crash of `path`, and return how many came in a row.

        A crash `after_success`, of a runner that had finished a request, begins a new row.
        """
        row = self._rows.get(path)
        continues = row is not None and not after_success and now_s - row.last_s <= APART_S
        count = row.count + 1 if row is not None and continues else 1
        self._rows[path] = _Row(count, now_s, how)
        return count

    def refusal(self, path: str, now_s: float) -> str | None:
        """Return the reason to refuse a load of `path` now, or None if one is allowed."""
        row = self._rows.get(path)
        if row is None or row.count <= FORGIVEN:
            return None
        pause_s = min(FIRST_PAUSE_S * 2.0 ** (row.count - FORGIVEN - 1), LONGEST_PAUSE_S)
        left_s = row.last_s + pause_s - now_s
        if left_s <= 0:
            return None
        return (
            f"the model crashed {row.count} times in a row and is not loaded again for another "
            f"{left_s:.0f} s; the last time: {row.how}"
        )


#: Maximum silence. A working runner answers pings at once, except while it reads a very long prompt.
_SILENCE_S = 60.0
_MAX_BETWEEN_S = 5.0


async def watch(runner: Runner, busy: Callable[[], bool], step_timeout_s: float) -> None:
    """Watch `runner` while it is `busy`; kill it when a step lasts longer than `step_timeout_s`.

    Also kill it when it does not answer pings for that long, or for a minute.
    """
    silence_s = min(_SILENCE_S, step_timeout_s)
    while True:
        await asyncio.sleep(min(_MAX_BETWEEN_S, silence_s / 4))
        if not busy() or not runner.alive:
            return
        try:
            pong = await runner.ping(silence_s)
        except RunnerError:
            if runner.alive:
                runner.kill(f"it did not answer for {silence_s:g} s")
            return
        if pong.step_age_s > step_timeout_s:
            runner.kill(
                f"a step took longer than {step_timeout_s:g} s; "
                "PUNA_STEP_TIMEOUT sets the limit, and a smaller num_batch makes steps shorter"
            )
            return


class Queue:
    """The limit of waiting requests.

    It is twice as high for a client with no other request in progress, so that others cannot fill its queue.
    """

    def __init__(self, longest: int) -> None:
        self._longest: Final = longest
        self._in_progress: Counter[str] = Counter()  # requests of each client

    def enter(self, client: str) -> None:
        self._in_progress[client] += 1

    def leave(self, client: str) -> None:
        self._in_progress[client] -= 1
        if not self._in_progress[client]:
            del self._in_progress[client]

    def check(self, client: str, waiting: int) -> None:
        """Raise ServerBusyError if `waiting` requests are too many for another one of `client` to wait.

        The request must have entered.
        """
        most = self._longest * (2 if self._in_progress[client] == 1 else 1)
        if waiting > most:
            raise ServerBusyError("server busy, please try again.  maximum pending requests exceeded")


class Loading:
    """A load that requests wait for; it is cancelled when the last of them leaves.

    The task returns the model with one additional user, the load itself, so that a model with a keep-alive of
    0 does not end before the waiting requests have taken it.
    """

    task: asyncio.Task[ResidentModel]

    def __init__(self, name: str) -> None:
        self.name = name  # of the model, for display
        self.requests: Counter[str] = Counter()  # by client
        self.interactive = 0  # of these requests
        self.turns: dict[str, Turn] = {}  # by client
        self._callbacks: list[ProgressCallback] = []

    def report_to(self, on_progress: ProgressCallback) -> None:
        """Call `on_progress` with the progress from now on."""
        self._callbacks.append(on_progress)

    def progressed(self, done: int, total: int) -> None:
        for callback in self._callbacks:
            callback(done, total)

    @property
    def waiters(self) -> int:
        return self.requests.total()


class Loads:
    """The order of loads: clients take turns, so that one with many models does not delay the others.

    Loads for interactive requests come first. A load that several clients wait for has the earliest of their
    turns.
    """

    def __init__(self) -> None:
        self._turns = ClientRotation()
        self._wanted: Counter[str] = Counter()  # loads that each client waits for
        self._waiting: dict[Loading, asyncio.Future[None]] = {}
        self._busy = False

    def join(self, load: Loading, client: str, priority: Priority) -> None:
        """Add a request of `client` that waits for `load`."""
        if client not in load.turns:
            load.turns[client] = self._turns.take(client)
            self._wanted[client] += 1
        load.requests[client] += 1
        load.interactive += priority == "interactive"

    def leave(self, load: Loading, client: str, priority: Priority) -> None:
        """Remove a request of `client` that no longer waits, whether or not the model is loaded."""
        load.requests[client] -= 1
        load.interactive -= priority == "interactive"
        if load.requests[client] == 0:
            del load.turns[client]
            self._wanted[client] -= 1
            if self._wanted[client] == 0:
                del self._wanted[client]
                self._turns.emptied(client)

    @contextlib.asynccontextmanager
    async def turn(self, load: Loading) -> AsyncIterator[None]:
        """Wait for the turn of `load`, and hold it while the context is open."""
        if self._busy:
            called = self._waiting[load] = asyncio.get_running_loop().create_future()
            try:
                await called
            except asyncio.CancelledError:
                if self._waiting.pop(load, None) is None:  # called at the last moment
                    self._call_next()
                raise
        self._busy = True
        if load.turns:
            self._turns.served(*_first(load))
        try:
            yield
        finally:
            self._call_next()

    def _call_next(self) -> None:
        # The other loads are cancelled or about to be.
        wanted = [load for load, called in self._waiting.items() if load.turns and not called.done()]
        self._busy = bool(wanted)
        if wanted:
            load = min(wanted, key=lambda one: (not one.interactive, min(one.turns.values())))
            self._waiting.pop(load).set_result(None)


def _first(load: Loading) -> tuple[str, Turn]:
    """Return the client with the earliest turn among those that wait for `load`, and its turn."""
    return min(load.turns.items(), key=lambda item: item[1])
