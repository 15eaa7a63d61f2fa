"""Models in memory, and the processes that run them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from puna.errors import InsufficientMemoryError, NotSupportedError, RunnerError
from puna.kvcache.contents import Contents
from puna.machine import usable_threads
from puna.options import AUTO, LLAMACPP, PUNA, AdapterFile, Options, Placement
from puna.protocol import (
    Chunk,
    Done,
    Embed,
    Embedded,
    Evaluated,
    Generate,
    LiveState,
    Load,
    Loaded,
    Pong,
    Prompted,
    Scored,
)
from puna.runner.client import LocalRunner, Tally

if TYPE_CHECKING:
    from puna.server.settings import Settings
    from puna.store import StoredModel


class LocalLauncher:
    """Starts a process for each runner; see `puna.server.fleet.resident.Launcher`."""

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

    async def watch(self) -> LiveState:
        """Return what the engine is doing, after the current step."""

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


_log = logging.getLogger(__name__)

#: "Forever" on the wire: the largest count of nanoseconds in 64 bits, about 292 years.
_FOREVER_NS = 2**63 - 1


@dataclass(frozen=True)
class LoadPlan:
    """The options a model is loaded with. Another value of any of them means loading again.

    `placement` is for llama.cpp: of a model that Puna's own engine runs it changes nothing.
    """

    num_ctx: int
    num_batch: int = 512
    num_thread: int = 0
    draft: str = ""  # path of the model that guesses
    engine: str = AUTO
    placement: Placement = Placement()  # noqa: RUF009, frozen
    projector: str = ""  # path of what the model sees with, where that is a file of its own
    adapters: tuple[AdapterFile, ...] = ()

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
            usable_threads(options.num_thread),
            draft,
            options.engine or default_engine,
            options.placement,
            projector,
            adapters,
        )

    def serves(
        self, wanted: LoadPlan, context_length: int, engine: str = PUNA, *, exact_context: bool = False
    ) -> bool:
        """Whether a model loaded by this plan is as `wanted` asks, which `engine` has come to run.

        It has `context_length` tokens of context, which are enough for all who want fewer, unless it computes
        something else with fewer (`exact_context`): where its own limit cut `num_ctx` down, asking for
        anything above that limit is the same.
        """
        # Without a wish it is Puna's own wherever that can run it.
        if wanted.engine not in (self.engine, engine) and (wanted.engine, engine) != (AUTO, PUNA):
            return False
        if engine == LLAMACPP and wanted.placement != self.placement:
            return False
        cut = context_length < self.num_ctx and wanted.num_ctx >= context_length
        shorter = not exact_context and wanted.num_ctx <= context_length
        same_context = cut or shorter or wanted.num_ctx == self.num_ctx
        return same_context and self._is_like(wanted, context_length)

    def grows_to(self, wanted: LoadPlan, context_length: int, max_context: int) -> bool:
        """Whether all that `wanted` asks for beyond this plan is a longer context, and that is possible."""
        cut = context_length < self.num_ctx
        return (
            not cut
            and context_length < wanted.num_ctx <= max_context
            and self.serves(replace(wanted, num_ctx=self.num_ctx), context_length)
        )

    def _is_like(self, wanted: LoadPlan, context_length: int) -> bool:
        """Whether all options but the context and what computes are the same."""
        batch, wanted_batch = min(self.num_batch, context_length), min(wanted.num_batch, context_length)
        return (batch, self.num_thread, self.draft, self.projector, self.adapters) == (
            wanted_batch, wanted.num_thread, wanted.draft, wanted.projector, wanted.adapters,
        )  # fmt: skip


@dataclass(eq=False)
class ResidentModel:
    """One model in memory, or on its way there (then `runner` is None)."""

    model: StoredModel  # under the name it was loaded by
    path: str
    plan: LoadPlan
    keep_alive_s: float
    runner: Runner | None = None
    users: int = 0
    retiring: bool = False  # takes no new requests; ends when the last one has
    fixed: bool = False  # its context can grow no more
    expires_s: float = 0.0  # on the monotonic clock, `math.inf` for never
    loading: float = 0.0  # share of the weights in place, while loading
    load_s: float = 0.0  # how long loading took
    loaded_s: float = 0.0  # when that was done, on the monotonic clock
    watch: asyncio.Task[None] | None = None  # looks after the runner while it is used
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # set once it is out of the table

    def load(self, settings: Settings, parallel: int, reserved: int) -> Load:
        """What a runner is told to load it for `parallel` sequences; `reserved` as in `Load`."""
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

    @property
    def ready(self) -> bool:
        return self.runner is not None and self.runner.alive and not self.retiring

    @property
    def full(self) -> bool:
        """Whether a request more would have to wait for its turn."""
        return self.runner is not None and self.users >= self.runner.info.parallel

    @property
    def queued(self) -> int:
        """How many requests wait for their turn, as far as each needs one place of a batch."""
        return 0 if self.runner is None else max(self.users - self.runner.info.parallel, 0)

    def serves(self, wanted: LoadPlan) -> bool:
        if self.runner is None:
            return False
        info = self.runner.info
        useful = self._useful(wanted)
        return self.plan.serves(useful, info.context_length, info.engine, exact_context=info.exact_context)

    def can_grow_to(self, wanted: LoadPlan) -> bool:
        """Whether it would serve `wanted` with a longer context, which it can have without loading again."""
        if self.runner is None or self.fixed or self.runner.info.engine not in (PUNA, wanted.engine):
            return False
        info = self.runner.info
        return self.plan.grows_to(self._useful(wanted), info.context_length, info.max_context)

    def _useful(self, wanted: LoadPlan) -> LoadPlan:
        """`wanted` with no more context than the model was trained for: it never gets more."""
        assert self.runner is not None
        most = self.runner.info.trained_context or wanted.num_ctx
        return replace(wanted, num_ctx=min(wanted.num_ctx, most))

    async def grow(self, wanted: LoadPlan, reserved: int) -> None:
        """Have the context that `wanted` asks for, or else note that it can grow no more."""
        assert self.runner is not None
        try:
            await self.runner.grow(wanted.num_ctx, reserved)
        except (InsufficientMemoryError, NotSupportedError, RunnerError) as error:
            _log.info("the context of %s cannot grow: %s", self.model.name, error)
            self.fixed = True
        else:
            self.plan = replace(self.plan, num_ctx=max(self.plan.num_ctx, wanted.num_ctx))
            _log.info("%s has %d tokens of context now", self.model.name, self.context_length)

    def touch(self) -> None:
        """Start the keep-alive time anew."""
        self.expires_s = time.monotonic() + self.keep_alive_s

    @property
    def expires_ns(self) -> int:
        """Wall clock time since the epoch; in the past for a model that is busy beyond its time."""
        remaining_s = self.expires_s - time.monotonic()
        return time.time_ns() + (_FOREVER_NS if math.isinf(remaining_s) else int(remaining_s * 1e9))

    @property
    def size_bytes(self) -> int:
        return 0 if self.runner is None else self.runner.info.weight_bytes + self.runner.info.cache_bytes

    @property
    def vram_bytes(self) -> int:
        """Of `size_bytes`, those on GPUs."""
        return 0 if self.runner is None else self.runner.info.vram_bytes

    @property
    def context_length(self) -> int:
        return self.plan.num_ctx if self.runner is None else self.runner.info.context_length


def victim(loaded: Collection[ResidentModel]) -> ResidentModel | None:
    """The model to unload for another: the idle one kept shortest, else the busy one kept shortest."""
    order = sorted(loaded, key=lambda model: (model.keep_alive_s, model.path))
    return next((model for model in order if model.users == 0), order[0] if order else None)


def victims(loaded: Collection[ResidentModel], freed: Mapping[str, int], missing: int) -> list[ResidentModel]:
    """The models to unload for `missing` bytes; `freed` are those of each path. None if all are too few."""
    if sum(freed.values()) < missing:
        return []
    others, chosen = list(loaded), []
    while missing > 0 and (other := victim(others)) is not None:
        others.remove(other)
        missing -= freed.get(other.path, 0)
        chosen.append(other)
    return chosen
