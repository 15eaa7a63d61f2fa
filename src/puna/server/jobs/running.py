"""Requests being served: how far each has come, the runner it holds, and how to end one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from puna.errors import RequestCancelledError
from puna.protocol import Evaluated
from puna.server.fleet.loading import ProgressCallback
from puna.server.fleet.resident import Runner
from puna.server.http.connections import Caller, caller
from puna.server.http.logs import facts


class Running:
    """A request that generates or embeds, from its arrival to its end."""

    def __init__(self, model: str, arrived_ns: int) -> None:
        self._facts = facts()
        self._model = model
        self._arrived_ns = arrived_ns  # by `time.perf_counter_ns`
        self._client = caller().client
        self._began_ns = 0
        self._tokens = 0
        self._state = "loading"
        self._waits: set[asyncio.Task[Any]] = set()
        self._cancelled = asyncio.Event()

    @property
    def id(self) -> str:
        return self._facts.id

    def loaded(self) -> None:
        """The model is there."""
        self._state = "prompt"

    def generated(self, tokens: int) -> None:
        """So many tokens more."""
        if not self._began_ns:
            self._state = "generating"
            self._began_ns = time.perf_counter_ns()
        self._tokens += tokens

    def fields(self) -> dict[str, Any]:
        """What `/api/ps` says of it; the speed is that since the first tokens."""
        now_ns = time.perf_counter_ns()
        said: dict[str, Any] = {
            "id": self.id,
            "model": self._model,
            "state": self._state,
            "duration": now_ns - self._arrived_ns,
            "generated": self._tokens,
        }
        if self._began_ns and now_ns > self._began_ns:
            said["tokens_per_second"] = round(self._tokens * 1e9 / (now_ns - self._began_ns), 2)
        return said

    def is_of(self, who: Caller) -> bool:
        """Whether `who` may end it: whose it is, and who manages the server."""
        return who.client == self._client or "manage" in who.scopes

    def cancel(self) -> None:
        """End it: whoever waits for it gets an error."""
        self._cancelled.set()
        for task in self._waits:
            task.cancel()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what may take long. Raises RequestCancelledError once it is cancelled."""
        task = asyncio.current_task()
        assert task is not None
        if self._cancelled.is_set():
            raise RequestCancelledError
        self._waits.add(task)
        try:
            yield
        except asyncio.CancelledError:
            # The client may have left at the same time.
            if self._cancelled.is_set() and task.uncancel() == 0:
                raise RequestCancelledError from None
            raise
        finally:
            self._waits.discard(task)


class RunningRequests:
    """All of them, in the order of their arrival."""

    def __init__(self) -> None:
        self._all: dict[int, Running] = {}

    @contextlib.contextmanager
    def running(self, model: str, arrived_ns: int) -> Iterator[Running]:
        """The request being served, for as long as the block runs."""
        request = Running(model, arrived_ns)
        self._all[id(request)] = request
        try:
            yield request
        finally:
            del self._all[id(request)]

    def fields(self) -> list[dict[str, Any]]:
        """What `/api/ps` says of them."""
        return [request.fields() for request in self._all.values()]

    def cancel(self, request_id: str, who: Caller) -> bool:
        """End those of this id that `who` may end; whether there were any."""
        found = [one for one in self._all.values() if one.id == request_id and one.is_of(who)]
        for request in found:
            request.cancel()
        return bool(found)


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
