"""The requests that are being served: what each has come to, and how to end one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

from puna.errors import RequestCancelledError
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

    @property
    def id(self) -> str:
        return self._facts.id

    def loaded(self) -> None:
        """The model is there."""
        self.state = "prompt"

    def generated(self, tokens: int) -> None:
        """So many tokens more."""
        if not self._began_ns:
            self.state = "generating"
            self._began_ns = time.perf_counter_ns()
        self.tokens += tokens

    @property
    def duration_s(self) -> float:
        """Seconds since its arrival."""
        return (time.perf_counter_ns() - self._arrived_ns) / 1e9

    @property
    def tokens_per_second(self) -> float:
        """Speed since the first tokens; 0 before."""
        taken_ns = time.perf_counter_ns() - self._began_ns
        return round(self.tokens * 1e9 / taken_ns, 2) if self._began_ns and taken_ns > 0 else 0.0

    def fields(self) -> dict[str, Any]:
        """Return the request as `/api/ps` lists it."""
        said: dict[str, Any] = {
            "id": self.id,
            "model": self.model,
            "state": self.state,
            "duration": int(self.duration_s * 1e9),
            "generated": self.tokens,
        }
        if speed := self.tokens_per_second:
            said["tokens_per_second"] = speed
        return said

    def is_of(self, who: Caller) -> bool:
        """Whether `who` may end it: whose it is, and who manages the server."""
        return who.client == self.client or "manage" in who.scopes

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

    def __iter__(self) -> Iterator[Running]:
        return iter([*self._all.values()])

    def fields(self) -> list[dict[str, Any]]:
        """What `/api/ps` says of them."""
        return [request.fields() for request in self._all.values()]

    def cancel(self, request_id: str, who: Caller) -> bool:
        """End those of this id that `who` may end; whether there were any."""
        found = [one for one in self._all.values() if one.id == request_id and one.is_of(who)]
        for request in found:
            request.cancel()
        return bool(found)
