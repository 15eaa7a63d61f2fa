"""Requests being served: their progress, the runners they hold, and how to end them."""

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
from puna.runner.client import ProgressCallback
from puna.server.fleet.resident import Runner
from puna.server.http.connections import Caller, caller
from puna.server.http.logs import facts


class Running:
    """A request that generates or embeds, from its arrival to its end."""

    def __init__(self, model: str, arrived_ns: int) -> None:
        self._facts = facts()
        self.model = model
        self._arrived_ns = arrived_ns  # by `time.perf_counter_ns`
        self.client = caller().client
        self._began_ns = 0
        self.tokens = 0
        self.state = "loading"
        self._waits: set[asyncio.Task[Any]] = set()
        self._cancelled = asyncio.Event()
        self._finishers: list[Callable[[], None]] = []
        self._finishes_thinking = False

    @property
    def id(self) -> str:
        return self._facts.id

    def loaded(self) -> None:
        """Note that the model is loaded."""
        self.state = "prompt"

    def generated(self, tokens: int) -> None:
        """Note `tokens` more generated tokens."""
        if not self._began_ns:
            self.state = "generating"
            self._began_ns = time.perf_counter_ns()
        self.tokens += tokens

    @property
    def duration_s(self) -> float:
        """Seconds since the request arrived."""
        return (time.perf_counter_ns() - self._arrived_ns) / 1e9

    @property
    def tokens_per_second(self) -> float:
        """Speed since the first tokens; 0 before."""
        taken_ns = time.perf_counter_ns() - self._began_ns
        return round(self.tokens * 1e9 / taken_ns, 2) if self._began_ns and taken_ns > 0 else 0.0

    def fields(self) -> dict[str, Any]:
        """Return the request's fields in `/api/ps`; the speed counts from the first tokens."""
        fields: dict[str, Any] = {
            "id": self.id,
            "model": self.model,
            "state": self.state,
            "duration": int(self.duration_s * 1e9),
            "generated": self.tokens,
        }
        if speed := self.tokens_per_second:
            fields["tokens_per_second"] = speed
        return fields

    def may_be_ended_by(self, caller: Caller) -> bool:
        """Whether `caller` is the request's client, or has the scope `manage`."""
        return caller.client == self.client or "manage" in caller.scopes

    def thinks(self, finish: Callable[[], None]) -> None:
        """Note that the request is with its runner, and `finish` ends its thinking."""
        self._finishers.append(finish)
        if self._finishes_thinking:
            finish()

    def finish_thinking(self) -> None:
        """End the thinking of all answers, now or when it begins."""
        self._finishes_thinking = True
        for finish in self._finishers:
            finish()

    def cancel(self) -> None:
        """End the request with an error for all tasks that wait for it."""
        self._cancelled.set()
        for task in self._waits:
            task.cancel()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Make awaiting in this context end with RequestCancelledError when the request is cancelled."""
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
    """All requests being served, in the order of their arrival."""

    def __init__(self) -> None:
        self._all: dict[int, Running] = {}

    @contextlib.contextmanager
    def running(self, model: str, arrived_ns: int) -> Iterator[Running]:
        """List a request as being served while the context is open."""
        request = Running(model, arrived_ns)
        self._all[id(request)] = request
        try:
            yield request
        finally:
            del self._all[id(request)]

    def __iter__(self) -> Iterator[Running]:
        return iter([*self._all.values()])

    def fields(self) -> list[dict[str, Any]]:
        """Return the requests' fields in `/api/ps`."""
        return [request.fields() for request in self._all.values()]

    def cancel(self, request_id: str, caller: Caller) -> bool:
        """End the requests with this id that `caller` may end, and return whether there were any."""
        found = self._found(request_id, caller)
        for request in found:
            request.cancel()
        return bool(found)

    def finish_thinking(self, request_id: str, caller: Caller) -> bool:
        """End the thinking of the requests that `cancel` would end; return whether there were any."""
        found = self._found(request_id, caller)
        for request in found:
            request.finish_thinking()
        return bool(found)

    def _found(self, request_id: str, caller: Caller) -> list[Running]:
        return [one for one in self._all.values() if one.id == request_id and one.may_be_ended_by(caller)]


class LoadProgress(msgspec.Struct, frozen=True):
    """Total bytes of the model, bytes in place, and milliseconds since the request arrived."""

    total: int
    processed: int
    time_ms: float


class PromptProgress(msgspec.Struct, frozen=True):
    """Tokens of the prompt: in total, from the cache, and processed including those; milliseconds so far.

    The form is llama.cpp's.
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
        """The fields of replies."""
        given = {"load_progress": self.load_progress, "prompt_progress": self.prompt_progress}
        return {name: value for name, value in given.items() if value is not None}


class RunnerLease:
    """The runner of a request, waited for on first use and then held by `held`."""

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
        self._changed = asyncio.Event()
        self._latest: Progress | None = None  # only the latest matters

    async def runner(self) -> Runner:
        """Return the runner, waiting for it the first time. Raises the errors of loading."""
        if self._runner is None:
            with self._running.waiting():
                self._runner = await self._held.enter_async_context(self._use(self._note_progress))
        return self._runner

    async def steps(self) -> AsyncGenerator[Progress, None]:
        """Yield the progress of the load. Raises the errors of loading."""
        loading = asyncio.create_task(self.runner())
        loading.add_done_callback(lambda _: self._changed.set())
        try:
            while not loading.done() or self._latest is not None:
                await self._changed.wait()
                self._changed.clear()
                if self._latest is not None:
                    latest, self._latest = self._latest, None
                    yield latest
            await loading
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)

    def _note_progress(self, done: int, total: int) -> None:
        self._latest = Progress(LoadProgress(total, done, _ms(time.perf_counter_ns() - self._arrived_ns)))
        self._changed.set()


def _ms(nanoseconds: int) -> float:
    return round(nanoseconds / 1e6, 3)
