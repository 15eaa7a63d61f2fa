"""A model with several replicas behind it, which looks like one runner."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Sequence,
)
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import msgspec.structs
import numpy as np

from puna.cluster.asking import NodeLostError
from puna.cluster.failover import Delivery, GenerateEvent
from puna.cluster.node import Node
from puna.cluster.replica import Replica
from puna.cluster.router import Route, Router
from puna.cluster.settings import ClusterSettings
from puna.errors import PunaError, RunnerError
from puna.kvcache.contents import Contents
from puna.prefix_blocks import BLOCK
from puna.protocol import (
    Chunk,
    Detokenized,
    Done,
    Embed,
    Embedded,
    Generate,
    Heard,
    Load,
    Loaded,
    Pong,
    Prompted,
    Segment,
    StageCost,
    Transcribe,
    Transcribed,
)
from puna.runner.client import ModelProcess, ProgressCallback, RunnerClient, StageStatus, Tally

T = TypeVar("T")

#: How often a replica is asked how it is.
_HEARTBEAT_S: Final = 1.0
#: Maximum silence of a replica whose connection is whole: it may read a very long prompt.
_SILENCE_S: Final = 60.0
#: A request that waits longer than this for its first token has another replica loaded.
_GROW_AFTER_S: Final = 1.0
#: How long not to try again after no node could take another replica.
_GROW_PAUSE_S: Final = 30.0
#: How often a request is tried again: after its runner has crashed, and after its node was lost.
_CRASHES: Final = 1
_LOSSES: Final = 8
#: Speeds of replicas before any is measured, in tokens per second.
_FIRST_SPEEDS: Final = (500.0, 20.0)

_log = logging.getLogger(__name__)


class Nodes(Protocol):
    """The nodes that replicas are on; see `puna.cluster.cluster.Cluster`."""

    settings: ClusterSettings
    keep_alive_s: float
    step_timeout_s: float

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are there now."""

    def promised(self, node: Node) -> int:
        """Return the bytes by which caches on a node may still grow."""

    def allowed(self, node: Node) -> int:
        """Return the bytes that one more model may take on a node, if they are free."""

    async def place(
        self,
        load: Load,
        on_progress: ProgressCallback | None = None,
        *,
        without: Collection[Node] = (),
        divide: bool = True,
        stall_timeout_s: float | None = None,
    ) -> Replica:
        """Load a model on the node that suits it best, of those that are not in `without`, or on several."""

    def forget(self, replicas: Replicas) -> None:
        """Note that a model is closed."""


@dataclass(frozen=True)
class ReplicaStatus:
    """A replica as `puna cluster status` shows it."""

    name: str
    node: str
    state: str  # "ready", "draining" or "lost"
    users: int
    parallel: int
    kernels: str
    memory_bytes: int
    cached_blocks: int
    block_tokens: int
    prompt_tokens_s: float
    decode_tokens_s: float
    stages: list[StageStatus]  # of a model on several nodes


class Replicas:
    """The replicas of one model; see `puna.server.fleet.resident.Runner`.

    A request goes where its first token is expected first. When its replica dies, it goes on elsewhere, and
    its events continue with the token they would have continued with.
    """

    scales: Final = True

    def __init__(self, cluster: Nodes) -> None:
        self.tally = Tally()
        self._cluster = cluster
        self._bounds = cluster.settings.replicas
        self._load: Load | None = None
        self._replicas: list[Replica] = []
        self._router = Router()
        self._growing: asyncio.Task[None] | None = None
        self._grows_again_s = -math.inf
        self._tasks: set[asyncio.Task[None]] = set()
        self._left = asyncio.Event()  # set when a request has ended
        self._closing: set[asyncio.Task[None]] = set()  # replicas that end
        self._requests = 0  # under way
        self._info = Loaded(context_length=0, parallel=1, weight_bytes=0, cache_bytes=0)
        self._death = RunnerError("the model has no replica")
        self._closed = False

    # --- facts ---

    @property
    def info(self) -> Loaded:
        if not self._replicas:  # it is loaded again for the next request
            return self._info
        infos = [replica.client.info for replica in self._replicas]
        return msgspec.structs.replace(
            infos[0],
            context_length=min(info.context_length for info in infos),
            max_context=min(info.max_context for info in infos),
            parallel=sum(info.parallel for info in infos),
            weight_bytes=sum(info.weight_bytes for info in infos),
            cache_bytes=sum(info.cache_bytes for info in infos),
            vram_bytes=sum(info.vram_bytes for info in infos),
        )

    @property
    def alive(self) -> bool:
        """Whether the next request has a replica, or gets one: a model whose last runner crashed is dead."""
        return not self._closed and (
            any(replica.alive for replica in self._replicas)
            or self._growing is not None
            or self._requests > 0
            or isinstance(self._death, NodeLostError)
        )

    @property
    def memory_bytes(self) -> int:
        return sum(process.memory_bytes for replica in self._replicas for process in replica.processes)

    def promised(self, node: Node) -> int:
        """Return the bytes by which its caches on a node may still grow."""
        return sum(
            max(replica.client.info.cache_bytes - replica.pong.cache_bytes, 0)
            for replica in self._replicas
            if replica.node is node and replica.pong is not None
        ) + sum(
            max(stage.cache_bytes - (stage.pong.cache_bytes if stage.pong is not None else 0), 0)
            for replica in self._replicas
            for stage in replica.stages
            if stage.node is node
        )

    def taken(self, node: Node) -> int:
        """Return the bytes that its processes on a node take; those not measured yet have their weights."""
        return sum(
            max(process.memory_bytes, client.info.weight_bytes)
            for replica in self._replicas
            for at, client, process in zip(replica.nodes, replica.clients, replica.processes, strict=True)
            if at is node
        )

    def processes(self) -> list[ModelProcess]:
        return [
            ModelProcess(one.name, one.node.name, one.client, tuple(_stages(one)))
            for one in self._replicas
            if one.alive
        ]

    def status(self) -> list[ReplicaStatus]:
        found = []
        for replica in self._replicas:
            load, info = self._router.load(replica.name), replica.client.info
            state = "ready" if replica.usable else "draining" if replica.alive else "lost"
            found.append(
                ReplicaStatus(
                    name=replica.name,
                    node=replica.node.name,
                    state=state,
                    users=replica.users,
                    parallel=info.parallel,
                    kernels=info.kernels,
                    memory_bytes=replica.process.memory_bytes,
                    cached_blocks=load.blocks,
                    block_tokens=BLOCK,
                    prompt_tokens_s=load.prompt_tokens_s,
                    decode_tokens_s=load.decode_tokens_s,
                    stages=_stages(replica),
                )
            )
        return found

    # --- life ---

    async def load(
        self,
        load: Load,
        on_progress: ProgressCallback | None = None,
        *,
        stall_timeout_s: float | None = 300.0,
    ) -> None:
        self._load = load
        await self._place(on_progress, stall_timeout_s=stall_timeout_s)

    async def grow(self, num_ctx: int, reserved: int) -> None:
        assert self._load is not None
        before = self._load
        # Replicas that are being loaded grow when they are, see `_place`.
        self._load = msgspec.structs.replace(before, num_ctx=max(before.num_ctx, num_ctx))
        growing = [replica for replica in self._replicas if replica.alive]
        results = await asyncio.gather(
            *(self._grow_context(replica, num_ctx) for replica in growing),
            return_exceptions=True,
        )
        for replica, result in zip(growing, results, strict=True):
            if isinstance(result, BaseException) and replica.alive:
                self._load = before
                raise result

    async def _grow_context(self, replica: Replica, num_ctx: int) -> None:
        node, own = replica.node, self.promised(replica.node)
        await replica.client.grow(
            num_ctx, self._cluster.promised(node) - own, self._cluster.allowed(node) + own
        )

    def scale(self, least: int, most: int) -> None:
        self._bounds = least, most

    async def leave(self, node: Node) -> None:
        """End the replicas on a node once their requests have ended."""
        leaving = [replica for replica in self._replicas if node in replica.nodes]
        for replica in leaving:
            replica.draining = True
            self._router.drain(replica.name)
        for replica in leaving:
            while replica.users and replica.alive:
                self._left.clear()
                await self._left.wait()
            await asyncio.shield(self._end(replica))

    def kill(self, reason: str) -> None:
        for replica in self._replicas:
            replica.kill(reason)

    async def close(self) -> None:
        self._closed = True
        if self._growing is not None:
            self._growing.cancel()
        for task in self._tasks:
            task.cancel()
        growing = [self._growing] if self._growing is not None else []
        await asyncio.gather(*self._tasks, *growing, return_exceptions=True)
        for replica in list(self._replicas):
            self._end(replica)
        await asyncio.gather(*self._closing, return_exceptions=True)
        self._cluster.forget(self)

    def death(self) -> RunnerError:
        return self._death

    # --- requests ---

    async def generate(
        self, request: Generate, on_sent: Callable[[Callable[[], None]], None] | None = None
    ) -> AsyncGenerator[GenerateEvent, None]:
        delivery = Delivery(request)
        digests, tokens = await self._prefix(request)
        retries = _Retries()
        kernels: str | None = None
        while True:
            async with self._replica(digests, tokens, kernels) as (replica, route):
                try:
                    async with contextlib.aclosing(
                        replica.client.generate(delivery.run(), on_sent)
                    ) as events:
                        async for event in events:
                            if isinstance(event, Chunk | Done):
                                self._router.first_token(route, time.monotonic())
                            if isinstance(event, Done):
                                self._measure(route, event)
                            new = delivery.new(event)
                            if new is not None:
                                yield new
                    return
                except RunnerError as error:
                    if replica.alive or self._closed or not retries.allow(error):
                        raise
                    kernels = replica.client.info.kernels if delivery.begun else None
                    _log.warning("a request goes on without node %s: %s", replica.node.name, error)

    async def embed(self, request: Embed) -> list[Embedded]:
        return await self._ask(lambda client: client.embed(request))

    async def transcribe(self, request: Transcribe) -> AsyncGenerator[Heard | Segment | Transcribed, None]:
        """Yield the events of a transcription; once there was one, it ends with its replica."""
        retries, begun = _Retries(), False
        while True:
            async with self._replica([], 0, None) as (replica, _):
                try:
                    async with contextlib.aclosing(replica.client.transcribe(request)) as events:
                        async for event in events:
                            if not begun:
                                begun = True
                                request = msgspec.structs.replace(request, samples=memoryview(b""))
                            yield event
                    return
                except RunnerError as error:
                    if begun or replica.alive or self._closed or not retries.allow(error):
                        raise

    async def render(self, request: Generate) -> Prompted:
        return await self._ask(lambda client: client.render(request))

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return await self._ask(
            lambda client: client.tokenize(text, add_special=add_special, parse_special=parse_special)
        )

    async def detokenize(self, tokens: list[int]) -> Detokenized:
        return await self._ask(lambda client: client.detokenize(tokens))

    async def contents(self) -> list[Contents]:
        return await self._ask(lambda client: client.contents())

    async def ping(self, timeout_s: float = 10.0) -> Pong:
        """Return the sums of what the replicas report. Raises `RunnerError` if none answers in time.

        Those that are slower than others count as they were when they answered last.
        """
        asked = {
            asyncio.create_task(replica.client.ping(timeout_s)): replica
            for replica in self._replicas
            if replica.alive
        }
        try:
            answered = await _first_results(asked, min(_HEARTBEAT_S, timeout_s))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if not answered:
            raise RunnerError(f"no replica of the model answered within {timeout_s:g} s")
        pongs = [*answered.values()]
        pongs += [
            replica.pong
            for task, replica in asked.items()
            if task not in answered and replica.pong is not None
        ]
        return Pong(
            id=0,
            active=sum(pong.active for pong in pongs),
            running=sum(pong.running for pong in pongs),
            step_age_s=0.0,  # each replica is watched here
            cache_bytes=sum(pong.cache_bytes for pong in pongs),
            cells=pongs[0].cells,
            evicted=sum(pong.evicted for pong in pongs),
            memory_bytes=self.memory_bytes,
            stages=_sums([pong.stages for pong in pongs]),
        )

    async def _ask(self, work: Callable[[RunnerClient], Awaitable[T]]) -> T:
        """Return the result of any replica; another one is asked if it dies."""
        retries = _Retries()
        while True:
            async with self._replica([], 0, None) as (replica, _):
                try:
                    return await work(replica.client)
                except RunnerError as error:
                    if replica.alive or self._closed or not retries.allow(error):
                        raise

    # --- choice of a replica ---

    async def _prefix(self, request: Generate) -> tuple[list[int], int]:
        """Return the digests of a prompt's blocks and its tokens; nothing if it makes no difference."""
        if len(self._usable) < 2:
            return [], 0
        if isinstance(request.prompt, str | list) and len(request.prompt) < BLOCK:
            return [], len(request.prompt)
        rendered = await self._ask(lambda client: client.render(request, blocks=True))
        return _digests(rendered.blocks), len(rendered.tokens)

    @contextlib.asynccontextmanager
    async def _replica(
        self, digests: list[int], tokens: int, kernels: str | None
    ) -> AsyncIterator[tuple[Replica, Route]]:
        """Hold the replica for a request, waiting for one if there is none. Raises `RunnerError`."""
        self._requests += 1
        try:
            async with self._routed(digests, tokens, kernels) as found:
                yield found
        finally:
            self._requests -= 1

    @contextlib.asynccontextmanager
    async def _routed(
        self, digests: list[int], tokens: int, kernels: str | None
    ) -> AsyncIterator[tuple[Replica, Route]]:
        while True:
            for lost in [replica for replica in self._replicas if not replica.alive]:
                self._lose(lost)
            route = self._router.route(digests, tokens, now_s=time.monotonic(), kernels=kernels)
            if route is not None:
                break
            await self._grow()
        replica = next(one for one in self._replicas if one.name == route.replica)
        if route.expected_s > _GROW_AFTER_S or replica.users >= replica.client.info.parallel:
            self._grow_soon()
        self._router.began(route, time.monotonic())
        replica.users += 1
        try:
            yield replica, route
        finally:
            replica.users -= 1
            replica.idle_since_s = time.monotonic()
            self._left.set()
            self._router.finished(route, time.monotonic())

    def _measure(self, route: Route, done: Done) -> None:
        evaluated = done.prompt_eval_count - done.cached
        self._router.finished(route, time.monotonic(), evaluated=evaluated, generated=done.eval_count)

    # --- number of replicas ---

    @property
    def _usable(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.usable]

    @property
    def bounds(self) -> tuple[int, int]:
        """The minimum and the maximum of replicas; it has fewer while nodes are missing."""
        least, most = self._bounds
        return least, most or max(least, len(self._cluster.nodes))

    def _add(self, replica: Replica) -> None:
        replica.client.tally = self.tally
        known = [self._router.load(one.name) for one in self._replicas]
        prompt_s, decode_s = _FIRST_SPEEDS
        if known:
            prompt_s = sum(load.prompt_tokens_s for load in known) / len(known)
            decode_s = sum(load.decode_tokens_s for load in known) / len(known)
        info = replica.client.info
        self._router.add(
            replica.name,
            parallel=info.parallel,
            prompt_tokens_s=prompt_s,
            decode_tokens_s=decode_s,
            kernels=info.kernels,
        )
        self._replicas.append(replica)
        self._spawn(self._look_after(replica))

    def _lose(self, replica: Replica) -> None:
        """Forget a replica that died."""
        if replica in self._replicas:
            self._death = replica.client.death()
            self._end(replica).add_done_callback(lambda _: self._note_death(replica))

    def _note_death(self, replica: Replica) -> None:
        """Note how a replica died, which is known once its actor has been asked."""
        self._death = replica.client.death()

    def _end(self, replica: Replica) -> asyncio.Task[None]:
        """Forget a replica at once, and return the task that ends it, which nothing cancels."""
        if replica in self._replicas:
            self._info = self.info
            self._replicas.remove(replica)
            self._router.remove(replica.name)
            self._left.set()
        task = asyncio.create_task(replica.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def _grow(self) -> None:
        """Load another replica, or wait for the one that is being loaded. Raises the error of loading."""
        if self._closed:
            raise RunnerError("the model is unloaded")
        if self._growing is None:
            self._growing = asyncio.create_task(self._place())
            self._growing.add_done_callback(self._grown)
        growing = self._growing
        try:
            await asyncio.shield(growing)
        except asyncio.CancelledError:
            waiter = asyncio.current_task()
            if growing.cancelled() and waiter is not None and not waiter.cancelling():
                raise RunnerError("the model is unloaded") from None
            raise

    def _grow_soon(self) -> None:
        """Load another replica in the background, if one more is allowed and another node can take it."""
        if (
            self._growing is None
            and not self._closed
            and len(self._replicas) < self.bounds[1]
            and time.monotonic() >= self._grows_again_s
        ):
            self._spawn(self._grow_quietly())

    async def _grow_quietly(self) -> None:
        with contextlib.suppress(PunaError):
            await self._grow()

    async def _place(
        self,
        on_progress: ProgressCallback | None = None,
        *,
        stall_timeout_s: float | None = None,
    ) -> None:
        """Load another replica, elsewhere if the chosen node is lost meanwhile."""
        retries = _Retries()
        while True:
            assert self._load is not None
            load = self._load
            taken = [node for replica in self._usable for node in replica.nodes]
            divide = all(replica.stages for replica in self._usable)
            try:
                placed = await self._cluster.place(
                    load, on_progress, without=taken, divide=divide, stall_timeout_s=stall_timeout_s
                )
            except RunnerError as error:
                if self._closed or not retries.allow(error):
                    raise
                await asyncio.sleep(_HEARTBEAT_S)  # until lost nodes are known
                continue
            if load.num_ctx < self._load.num_ctx:  # the others have grown meanwhile
                try:
                    await self._grow_context(placed, self._load.num_ctx)
                except BaseException as error:
                    await placed.close()
                    if not isinstance(error, PunaError):
                        raise
                    continue
            self._add(placed)
            return

    def _grown(self, task: asyncio.Task[None]) -> None:
        self._growing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._grows_again_s = time.monotonic() + _GROW_PAUSE_S
            _log.info("no other replica: %s", error)

    async def _look_after(self, replica: Replica) -> None:
        """Watch a replica as long as it lives, and forget it then."""
        with contextlib.suppress(NodeLostError):
            watching = self._watch(replica)
            for node in replica.nodes:
                watching = node.while_there(watching)
            await watching
        self._lose(replica)

    async def _watch(self, replica: Replica) -> None:
        """Check at intervals how a replica is and whether it is still needed, until it is dead."""
        step_s = self._cluster.step_timeout_s
        silence_s = min(_SILENCE_S, step_s)
        while replica in self._replicas and not self._closed:
            await asyncio.sleep(_HEARTBEAT_S)
            try:
                pong = await self._check(replica, silence_s)
            except (RunnerError, TimeoutError):
                replica.kill(f"it did not answer for {silence_s:g} s")
                return
            if not replica.alive:
                return
            if pong.step_age_s > step_s:
                replica.kill(f"a step took longer than {step_s:g} s (PUNA_STEP_TIMEOUT)")
            self._fit_number(replica)

    async def _check(self, replica: Replica, patience_s: float) -> Pong:
        """Learn how a replica is and what it remembers. Raises `RunnerError` and `TimeoutError`."""
        replica.pong = pong = await replica.client.ping(patience_s)
        replica.process.memory_bytes = pong.memory_bytes
        for stage in replica.stages:
            stage.pong = await stage.client.ping(patience_s)
            stage.process.memory_bytes = stage.pong.memory_bytes
        if len(self._replicas) > 1:
            async with asyncio.timeout(patience_s):
                await self._learn(replica)
        return pong

    def _fit_number(self, replica: Replica) -> None:
        """Load another replica if there are too few, or end this one if it is idle and there are too many."""
        least, most = self.bounds
        if len(self._usable) < least:
            self._grow_soon()
        idle_s = time.monotonic() - replica.idle_since_s
        needed = least if idle_s > self._cluster.keep_alive_s else most
        surplus = len(self._usable) > needed
        if not replica.users and (surplus or replica.draining):  # as after a drain that was given up
            self._end(replica)

    async def _learn(self, replica: Replica) -> None:
        """Tell the router what a replica remembers by now."""
        report = await replica.client.prefixes(replica.version)
        replica.version = report.version
        if replica in self._replicas:
            added, removed = _digests(report.added), _digests(report.removed)
            self._router.reported(replica.name, added, removed, report.whole)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _stages(replica: Replica) -> list[StageStatus]:
    """Return the stages of a split replica, the first one included."""
    if not replica.stages:
        return []
    costs = replica.pong.stages if replica.pong is not None else []
    ends = [replica.stages[0].begin, *(stage.end for stage in replica.stages)]
    found = []
    for number, (process, node) in enumerate(zip(replica.processes, replica.nodes, strict=True)):
        cost = costs[number] if number < len(costs) else StageCost(0, 0, 0)
        rows = max(cost.rows, 1)
        found.append(
            StageStatus(
                node=node.name,
                begin=ends[number - 1] if number else 0,
                end=ends[number],
                memory_bytes=process.memory_bytes,
                token_us=cost.compute_us / rows,
                token_bytes=cost.received_bytes / rows,
            )
        )
    return found


def _sums(costs: Sequence[Sequence[StageCost]]) -> list[StageCost]:
    """Return the sums over several split models, stage by stage."""
    stages = [[cost for cost in each if cost is not None] for each in itertools.zip_longest(*costs)]
    return [
        StageCost(
            rows=sum(cost.rows for cost in each),
            compute_us=sum(cost.compute_us for cost in each),
            received_bytes=sum(cost.received_bytes for cost in each),
        )
        for each in stages
    ]


async def _first_results(tasks: Collection[asyncio.Task[T]], patience_s: float) -> dict[asyncio.Task[T], T]:
    """Return what arrives within `patience_s`, or else what arrives first; nothing if all tasks fail."""
    waiting = set(tasks)
    found: dict[asyncio.Task[T], T] = {}
    deadline_s = time.monotonic() + patience_s
    while waiting and ((left_s := deadline_s - time.monotonic()) > 0 or not found):
        timeout_s = left_s if left_s > 0 else None
        done, waiting = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        found |= {task: task.result() for task in done if task.exception() is None}
    return found


def _digests(packed: bytes) -> list[int]:
    """Return the digests of a report."""
    found: list[int] = np.frombuffer(packed, "<u8").tolist()
    return found


@dataclass
class _Retries:
    """Counts of how often a request was tried again."""

    crashes: int = 0
    losses: int = 0

    def allow(self, error: RunnerError) -> bool:
        """Whether to try again after `error`: more often after the loss of a node than after a crash."""
        if isinstance(error, NodeLostError):
            self.losses += 1
        else:
            self.crashes += 1
        return self.crashes <= _CRASHES and self.losses <= _LOSSES
