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
