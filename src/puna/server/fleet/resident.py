"""Models in memory, and the runners that run them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from puna.errors import InsufficientMemoryError, NotSupportedError, RunnerError
from puna.kvcache.contents import Contents
from puna.machine import usable_threads
from puna.options import AUTO, LLAMACPP, PUNA, AdapterFile, Options, Placement
from puna.protocol import (
    Chunk,
    Detokenized,
    Done,
    Embed,
    Embedded,
    Evaluated,
    Generate,
    Heard,
    Load,
    Loaded,
    Pong,
    Prompted,
    Scored,
    Segment,
    Transcribe,
    Transcribed,
)
from puna.runner.client import LocalRunner, ModelProcess, ProgressCallback, Tally
from puna.server.fleet.events import UnloadReason

if TYPE_CHECKING:
    from puna.server.settings import Settings
    from puna.store import StoredModel


class LocalLauncher:
    """Starts a process for each runner; see `puna.server.fleet.resident.Launcher`."""

    async def launch(self) -> LocalRunner:
        return await LocalRunner.spawn()


class Runner(Protocol):
    """A runner of one model, usable after `load`. All methods belong to one event loop.

    Methods raise the error of their request, or `RunnerError` when the runner dies or breaks the protocol.
    """

    @property
    def info(self) -> Loaded:
        """The facts about the loaded model."""

    @property
    def tally(self) -> Tally:
        """The counts of the requests so far."""

    @property
    def alive(self) -> bool:
        """Whether it still runs and answers."""

    @property
    def memory_bytes(self) -> int:
        """The memory it takes now, which unloading frees."""

    @property
    def scales(self) -> bool:
        """Whether it may have several replicas."""

    def scale(self, least: int, most: int) -> None:
        """Keep the number of replicas within these bounds from now on, if it `scales`.

        Without a maximum (0), there is one on each node at most.
        """

    def processes(self) -> list[ModelProcess]:
        """Return its replicas, or its only process."""

    async def load(
        self,
        load: Load,
        on_progress: ProgressCallback | None = None,
        *,
        stall_timeout_s: float | None = 300.0,
    ) -> None:
        """Load the model; after `InsufficientMemoryError` another load can be tried.

        `on_progress` is called with (bytes done, bytes in total); `stall_timeout_s` is the maximum time
        without progress.
        """

    def generate(
        self, request: Generate, on_sent: Callable[[Callable[[], None]], None] | None = None
    ) -> AsyncGenerator[Prompted | Evaluated | Scored | Chunk | Done, None]:
        """Yield the events of `request`; closing the iterator stops the generation.

        `on_sent` is called once with a function that ends the request's thinking.
        """

    async def embed(self, request: Embed) -> list[Embedded]:
        """Return the vectors of the inputs in order."""

    def transcribe(self, request: Transcribe) -> AsyncGenerator[Heard | Segment | Transcribed, None]:
        """Yield the events of a transcription, `Transcribed` last. Closing the generator stops it."""

    async def render(self, request: Generate) -> Prompted:
        """Return the rendered prompt of `request`."""

    async def tokenize(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        """Return the tokens of `text`, as `Tokenize` describes."""

    async def detokenize(self, tokens: list[int]) -> Detokenized:
        """Return the text of `tokens`."""

    async def ping(self, timeout_s: float = 10.0) -> Pong:
        """Return the state of the runner. Raises `RunnerError` if it does not answer in time."""

    async def grow(self, num_ctx: int, reserved: int) -> None:
        """Raise the maximum context to `num_ctx` tokens, leaving `reserved` bytes of memory free.

        Raises `NotSupportedError` or `InsufficientMemoryError` if the model must be loaded again for it.
        """

    async def contents(self) -> list[Contents]:
        """Return the contents of the model's caches."""

    def kill(self, reason: str) -> None:
        """Kill a hanging runner; its requests fail with `reason`."""

    async def close(self) -> None:
        """End the runner and release its resources."""

    def death(self) -> RunnerError:
        """Return the error that tells why the runner died."""


class Launcher(Protocol):
    """A source of runners."""

    async def launch(self) -> Runner:
        """Return a runner that waits for `load`. Raises `RunnerError` if it cannot be started."""


_log = logging.getLogger(__name__)

#: "Forever" on the wire: the largest count of nanoseconds in 64 bits, about 292 years.
_FOREVER_NS = 2**63 - 1


@dataclass(frozen=True)
class LoadPlan:
    """The options a model is loaded with; changing any of them but `replicas` requires loading it again.

    Another `placement` matters only if it would place the model differently.
    """

    num_ctx: int
    num_batch: int = 512
    num_thread: int = 0
    draft: str = ""  # path of the draft model
    engine: str = AUTO
    placement: Placement = Placement()  # noqa: RUF009, frozen
    projector: str = ""  # path of the vision tower's own file, if it has one
    adapters: tuple[AdapterFile, ...] = ()
    replicas: tuple[int, int] | None = None  # bounds

    @classmethod
    def of(
        cls,
        options: Options,
        default_num_ctx: int,
        draft: str = "",
        default_engine: str = AUTO,
        projector: str = "",
        adapters: tuple[AdapterFile, ...] = (),
    ) -> LoadPlan:
        num_ctx = default_num_ctx if options.num_ctx is None else options.num_ctx
        return cls(
            num_ctx,
            options.num_batch,
            usable_threads(options.num_thread) if options.num_thread else 0,  # 0: the runner chooses
            draft,
            options.engine or default_engine,
            options.placement,
            projector,
            adapters,
            options.replicas,
        )

    def serves(
        self,
        wanted: LoadPlan,
        context_length: int,
        engine: str = PUNA,
        *,
        exact_context: bool = False,
        fitting: int = 0,
        gpus: int = 0,
    ) -> bool:
        """Whether a model that `engine` runs, loaded by this plan, serves requests with the plan `wanted`.

        The model has `context_length` tokens of context, which serve any request for fewer unless its results
        depend on the number (`exact_context`). If the model's own limit cut `num_ctx`, any request above that
        limit is served. With Puna's own engine, at most `fitting` layers can be on GPUs, of which there are
        `gpus`.
        """
        # By default, Puna's own engine runs every model that it can.
        if wanted.engine not in (self.engine, engine) and (wanted.engine, engine) != (AUTO, PUNA):
            return False
        if engine == LLAMACPP and wanted.placement != self.placement:
            return False
        if engine == PUNA and not self._is_placed_like(wanted.placement, fitting, gpus):
            return False
        cut = context_length < self.num_ctx and wanted.num_ctx >= context_length
        shorter = not exact_context and wanted.num_ctx <= context_length
        same_context = cut or shorter or wanted.num_ctx == self.num_ctx
        return same_context and self._is_like(wanted, context_length)

    def _is_placed_like(self, wanted: Placement, fitting: int, gpus: int) -> bool:
        own = self.placement
        here, there = (fitting if each.num_gpu < 0 else min(each.num_gpu, fitting) for each in (own, wanted))
        same_gpus = (own.main_gpu, own.tensor_split) == (wanted.main_gpu, wanted.tensor_split)
        return here == there and (same_gpus or gpus < 2 or not here)

    def grows_to(
        self, wanted: LoadPlan, context_length: int, max_context: int, *, fitting: int = 0, gpus: int = 0
    ) -> bool:
        """Whether `wanted` differs from this plan only in a longer context to which the model can grow."""
        cut = context_length < self.num_ctx
        return (
            not cut
            and context_length < wanted.num_ctx <= max_context
            and self.serves(replace(wanted, num_ctx=self.num_ctx), context_length, fitting=fitting, gpus=gpus)
        )

    def _is_like(self, wanted: LoadPlan, context_length: int) -> bool:
        """Whether all options are the same except context, engine and placement."""
        batch, wanted_batch = min(self.num_batch, context_length), min(wanted.num_batch, context_length)
        return (batch, self.num_thread, self.draft, self.projector, self.adapters) == (
            wanted_batch, wanted.num_thread, wanted.draft, wanted.projector, wanted.adapters,
        )  # fmt: skip


@dataclass(eq=False)
class ResidentModel:
    """A model in memory, or being loaded (then `runner` is None)."""

    model: StoredModel  # with the name it was loaded by
    path: str
    plan: LoadPlan
    keep_alive_s: float
    runner: Runner | None = None
    users: int = 0
    leaving: UnloadReason = "idle"  # why it will be unloaded
    retiring: bool = False  # takes no new requests, and ends after the last one
    fixed: bool = False  # its context cannot grow any more
    expires_s: float = 0.0  # by `time.monotonic`; `math.inf`: never
    loading: float = 0.0  # share of the weights in place while loading
    load_s: float = 0.0  # how long loading took
    loaded_s: float = 0.0  # when loading ended, by `time.monotonic`
    watch: asyncio.Task[None] | None = None  # watches the runner while it is used
    yielding: set[Callable[[], object]] = field(default_factory=set)  # requests that end if it must leave
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # set once the fleet has forgotten it

    def load(self, settings: Settings, parallel: int, reserved: int) -> Load:
        """Return the message to load it for `parallel` sequences; `reserved` is as in `Load`."""
        plan = self.plan
        return Load(
            path=self.path,
            num_ctx=plan.num_ctx,
            parallel=parallel,
            num_batch=plan.num_batch,
            num_thread=plan.num_thread,
            kv_cache_type=settings.kv_cache_type,
            draft=plan.draft,
            projector=plan.projector,
            adapters=plan.adapters,
            speculate=settings.speculate,
            reserved=reserved,
            engine=plan.engine,
            placement=plan.placement,
        )

    @contextlib.contextmanager
    def giving_way(self, give_way: Callable[[], object] | None) -> Iterator[None]:
        """Have `give_way` called if the model must leave memory while the context is open."""
        if give_way is not None:
            self.yielding.add(give_way)
        try:
            yield
        finally:
            if give_way is not None:
                self.yielding.discard(give_way)

    @property
    def ready(self) -> bool:
        return self.runner is not None and self.runner.alive and not self.retiring

    @property
    def full(self) -> bool:
        """Whether another request would have to wait for its turn."""
        return self.runner is not None and self.users >= self.runner.info.parallel

    @property
    def queued(self) -> int:
        """The number of requests waiting for their turn if each needs one slot."""
        return 0 if self.runner is None else max(self.users - self.runner.info.parallel, 0)

    def serves(self, wanted: LoadPlan) -> bool:
        if self.runner is None:
            return False
        info = self.runner.info
        useful = self._useful(wanted)
        return self.plan.serves(
            useful,
            info.context_length,
            info.engine,
            exact_context=info.exact_context,
            fitting=info.fitting,
            gpus=info.gpus,
        )

    def can_grow_to(self, wanted: LoadPlan) -> bool:
        """Whether it would serve `wanted` with a longer context, to which it can grow without reloading."""
        if self.runner is None or self.fixed or self.runner.info.engine not in (PUNA, wanted.engine):
            return False
        info = self.runner.info
        return self.plan.grows_to(
            self._useful(wanted), info.context_length, info.max_context, fitting=info.fitting, gpus=info.gpus
        )

    def _useful(self, wanted: LoadPlan) -> LoadPlan:
        """Return `wanted` with at most the trained context, which the model never exceeds."""
        assert self.runner is not None
        most = self.runner.info.trained_context or wanted.num_ctx
        return replace(wanted, num_ctx=min(wanted.num_ctx, most))

    async def grow(self, wanted: LoadPlan, reserved: int) -> None:
        """Grow to the context of `wanted`, or note that the model cannot grow any more."""
        assert self.runner is not None
        try:
            await self.runner.grow(wanted.num_ctx, reserved)
        except (InsufficientMemoryError, NotSupportedError, RunnerError) as error:
            _log.info("the context of %s cannot grow: %s", self.model.name, error)
            self.fixed = True
        else:
            self.plan = replace(self.plan, num_ctx=max(self.plan.num_ctx, wanted.num_ctx))
            _log.info("%s now has %d tokens of context", self.model.name, self.context_length)

    def scale(self, wanted: LoadPlan) -> None:
        """Have as many replicas as `wanted` says, if it says so."""
        if self.runner is not None and wanted.replicas is not None:
            self.plan = replace(self.plan, replicas=wanted.replicas)
            self.runner.scale(*wanted.replicas)

    def touch(self) -> None:
        """Restart the keep-alive time."""
        self.expires_s = time.monotonic() + self.keep_alive_s

    @property
    def expires_ns(self) -> int:
        """Time of expiry since the epoch; in the past for a model that is busy beyond its time."""
        remaining_s = self.expires_s - time.monotonic()
        return time.time_ns() + (_FOREVER_NS if math.isinf(remaining_s) else int(remaining_s * 1e9))

    @property
    def size_bytes(self) -> int:
        return 0 if self.runner is None else self.runner.info.weight_bytes + self.runner.info.cache_bytes

    @property
    def vram_bytes(self) -> int:
        """The part of `size_bytes` that is on GPUs."""
        return 0 if self.runner is None else self.runner.info.vram_bytes

    @property
    def context_length(self) -> int:
        return self.plan.num_ctx if self.runner is None else self.runner.info.context_length


def victim(loaded: Collection[ResidentModel]) -> ResidentModel | None:
    """Return the model to unload for another: the one with the shortest keep-alive, idle models first."""
    order = sorted(loaded, key=lambda model: (model.keep_alive_s, model.path))
    return next((model for model in order if model.users == 0), order[0] if order else None)


def victims(loaded: Collection[ResidentModel], freed: Mapping[str, int], missing: int) -> list[ResidentModel]:
    """Return the models to unload for `missing` bytes; empty if even all are not enough.

    `freed` are the bytes that unloading frees, by path.
    """
    if sum(freed.values()) < missing:
        return []
    others, chosen = list(loaded), []
    while missing > 0 and (other := victim(others)) is not None:
        others.remove(other)
        missing -= freed.get(other.path, 0)
        chosen.append(other)
    return chosen
