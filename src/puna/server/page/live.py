"""The engine at work: one feed for all listeners, asked of the runners only while somebody listens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import psutil

from puna.errors import RunnerError, ServerBusyError
from puna.kvcache.contents import Extents
from puna.machine import available_memory
from puna.protocol import LivePrefixes, LiveSequence, LiveState, StepTotals
from puna.runner.client import ModelProcess, StageStatus
from puna.server.fleet.fleet import Fleet
from puna.server.fleet.resident import ResidentModel
from puna.server.fleet.status import ModelStatus, look
from puna.server.http.connections import Caller
from puna.server.http.replies import encode
from puna.server.jobs.running import RunningRequests

#: Seconds between two states.
INTERVAL_S: Final = 0.5
#: Asking takes at most this share of an engine's time; engines that take longer are asked less often.
_SHARE: Final = 0.02
#: How long one state waits for a runner, which answers between two steps.
_PATIENCE_S: Final = 1.0
_MAX_LISTENERS: Final = 64
#: Replicas of a model that are listed; any may be chosen by its name.
_MAX_REPLICAS: Final = 256

_log = logging.getLogger(__name__)


class LiveMachine(msgspec.Struct, frozen=True):
    cores: int
    memory_total: int  # bytes
    memory_available: int


class LiveRequest(msgspec.Struct, frozen=True):
    """A request being served; `client` is shown to its own client and to keys that manage the server."""

    id: str
    model: str
    client: str | None
    state: str
    duration_s: float
    tokens: int
    tokens_per_second: float


class LiveReplica(msgspec.Struct, frozen=True):
    """A replica of a model; the only one of a model on one machine."""

    name: str
    node: str
    stages: tuple[StageStatus, ...] = ()  # of a model on several nodes


class LiveModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory or on its way there; without the engine's state where its runner did not answer.

    The state is that of the `replica`, and all other figures are of all replicas together.
    """

    name: str
    replicas: list[LiveReplica] = []
    replica: str = ""
    state: str  # "loading" or "ready"
    loading: float  # share of the weights in place
    expires_in_s: float | None  # None: never
    load_s: float = 0.0
    age_s: float = 0.0  # since it was loaded
    engine: str = ""
    kernels: str = ""
    parallel: int = 0
    context: int = 0
    process_bytes: int = 0
    weight_bytes: int = 0
    cache_bytes: int = 0
    cache_limit_bytes: int = 0
    tokens_per_second: float = 0.0
    running: int = 0
    waiting: int = 0
    step_age_s: float = 0.0
    steps: StepTotals | None = None
    sequences: list[LiveSequence] = []
    caches: list[Extents] = []
    prefixes: LivePrefixes | None = None


class Live(msgspec.Struct, frozen=True):
    """One state of the whole server. `time` is in seconds since the epoch."""

    time: float
    machine: LiveMachine
    waiting_for_load: dict[str, int]
    requests: list[LiveRequest]
    models: list[LiveModel]


@dataclass
class _Watched:
    """The newest state of a replica's engine, and when to ask for the next, by time.monotonic."""

    state: LiveState | None = None
    due_s: float = 0.0

    def shown(self, replica: str) -> dict[str, Any]:
        """Return the fields of `LiveModel` that are this replica's."""
        if self.state is None:
            return {"replica": replica}
        return {
            "replica": replica,
            "steps": self.state.totals,
            "sequences": self.state.sequences,
            "caches": self.state.caches,
            "prefixes": self.state.prefixes,
        }


class LiveFeed:
    """States of the server, made for all listeners at once and only while there are any."""

    def __init__(self, fleet: Fleet, requests: RunningRequests, client_name: Callable[[str], str]) -> None:
        """`client_name` makes a client's label for people from the one that the engine knows."""
        self._fleet = fleet
        self._requests = requests
        self._client_name = client_name
        self._listeners = 0
        self._state: Live | None = None
        self._fresh = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._wanted: Counter[str] = Counter()  # names of replicas, by their listeners
        self._watched: dict[str, _Watched] = {}  # by names of replicas

    async def events(self, who: Caller, replica: str = "") -> AsyncGenerator[bytes, None]:
        """Yield states as server-sent events, in which one model shows `replica`, and others any.

        Raises ServerBusyError when too many listen.
        """
        if self._listeners >= _MAX_LISTENERS:
            raise ServerBusyError(f"{self._listeners} clients watch this server, the most there may be")
        self._listeners += 1
        self._wanted[replica] += 1
        try:
            if self._task is None:
                self._task = asyncio.create_task(self._make())
            while True:
                await self._fresh.wait()
                if self._state is not None:
                    yield b"data: " + encode(self._for(who, self._state, replica)) + b"\n\n"
        finally:
            self._listeners -= 1
            self._wanted -= Counter([replica])
            if not self._listeners and self._task is not None:
                self._task.cancel()
                self._task, self._state = None, None
                self._watched.clear()

    async def _make(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                self._state = await self._now()
            except Exception:  # a defect, which must not leave the listeners without any later state
                _log.exception("the state of the engine could not be told")
            fresh, self._fresh = self._fresh, asyncio.Event()
            fresh.set()
            await asyncio.sleep(max(INTERVAL_S - (time.monotonic() - began_s), INTERVAL_S / 4))

    async def _now(self) -> Live:
        entries = self._fleet.loaded()
        looks = {one.model: one for one in await look(entries)}
        processes = [each for one in looks.values() for each in self._shown(one.runner.processes())]
        self._watched = {each.name: self._watched.get(each.name, _Watched()) for each in processes}
        await asyncio.gather(*map(self._watch, processes))
        return Live(
            time=time.time(),
            machine=LiveMachine(os.cpu_count() or 1, psutil.virtual_memory().total, available_memory()),
            waiting_for_load=self._fleet.waiting(),
            requests=[
                LiveRequest(
                    id=request.id,
                    model=request.model,
                    client=request.client,
                    state=request.state,
                    duration_s=request.duration_s,
                    tokens=request.tokens,
                    tokens_per_second=request.tokens_per_second,
                )
                for request in self._requests
            ],
            models=[self._model(entry, looks.get(entry)) for entry in entries],
        )

    def _shown(self, processes: Sequence[ModelProcess]) -> list[ModelProcess]:
        """Return the first of a model's processes, and those that listeners want."""
        return [each for number, each in enumerate(processes) if not number or self._wanted[each.name]]

    async def _watch(self, process: ModelProcess) -> None:
        """Ask a process for the state of its engine, unless that was expensive a moment ago."""
        watched, now_s = self._watched[process.name], time.monotonic()
        if now_s < watched.due_s:
            return
        with contextlib.suppress(RunnerError, TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                watched.state = await process.client.watch()
            watched.due_s = now_s + watched.state.took_s / _SHARE

    def _model(self, entry: ResidentModel, seen: ModelStatus | None) -> LiveModel:
        left_s = entry.expires_s - time.monotonic()
        expires_in_s = None if left_s == float("inf") else max(left_s, 0.0)
        if seen is None:
            return LiveModel(
                name=entry.model.name, state="loading", loading=entry.loading, expires_in_s=expires_in_s
            )
        info, pong, processes = seen.runner.info, seen.pong, seen.runner.processes()
        model = LiveModel(
            name=entry.model.name,
            replicas=[LiveReplica(each.name, each.node, each.stages) for each in processes[:_MAX_REPLICAS]],
            state="ready",
            loading=1.0,
            expires_in_s=expires_in_s,
            load_s=entry.load_s,
            age_s=time.monotonic() - entry.loaded_s,
            engine=info.engine,
            kernels=info.kernels,
            parallel=info.parallel,
            context=info.context_length,
            process_bytes=seen.memory_bytes,
            weight_bytes=info.weight_bytes,
            cache_limit_bytes=info.cache_bytes,
            tokens_per_second=seen.runner.tally.tokens_per_second,
        )
        if pong is not None:
            model = msgspec.structs.replace(
                model,
                cache_bytes=pong.cache_bytes,
                running=pong.running,
                waiting=pong.active - pong.running,
                step_age_s=pong.step_age_s,
            )
        first = next((each.name for each in processes if each.name in self._watched), None)
        if first is not None:
            model = msgspec.structs.replace(model, **self._watched[first].shown(first))
        return model

    def _for(self, who: Caller, state: Live, replica: str) -> Live:
        """Return what `who` may see: who the others are is for keys that manage the server."""

        def shown(client: str) -> str | None:
            return self._client_name(client) if client == who.client or "manage" in who.scopes else None

        requests = [
            msgspec.structs.replace(request, client=shown(request.client or "")) for request in state.requests
        ]
        watched = self._watched.get(replica)
        chosen = watched.shown(replica) if watched is not None else {}
        models = [
            msgspec.structs.replace(model, **chosen)
            if any(each.name == replica for each in model.replicas)
            else model
            for model in state.models
        ]
        models = [
            msgspec.structs.replace(
                model,
                sequences=[
                    msgspec.structs.replace(each, client=shown(each.client) or "") for each in model.sequences
                ],
            )
            for model in models
        ]
        return msgspec.structs.replace(state, requests=requests, models=models)
