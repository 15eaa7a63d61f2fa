"""What is known of a loaded model, and the decisions made from it. No I/O here."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from puna.machine import usable_threads
from puna.options import AUTO, LLAMACPP, PUNA, AdapterFile, Options, Placement

if TYPE_CHECKING:
    from puna.server.fleet.runner import Runner
    from puna.store import StoredModel

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
            min(options.num_batch, num_ctx),
            usable_threads(options.num_thread),
            draft,
            options.engine or default_engine,
            options.placement,
            projector,
            adapters,
        )

    def serves(self, wanted: LoadPlan, context_length: int, engine: str = PUNA) -> bool:
        """Whether a model loaded by this plan is as `wanted` asks, which `engine` has come to run.

        It has `context_length` tokens of context: where its own limit cut `num_ctx` down, asking for anything
        above that limit is the same.
        """
        # Without a wish it is Puna's own wherever that can run it.
        if wanted.engine not in (self.engine, engine) and (wanted.engine, engine) != (AUTO, PUNA):
            return False
        if engine == LLAMACPP and wanted.placement != self.placement:
            return False
        cut = context_length < self.num_ctx
        same_context = self.num_ctx == wanted.num_ctx or (cut and wanted.num_ctx >= context_length)
        batch, wanted_batch = min(self.num_batch, context_length), min(wanted.num_batch, context_length)
        others = (batch, self.num_thread, self.draft, self.projector, self.adapters)
        return same_context and others == (
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
    expires_s: float = 0.0  # on the monotonic clock, `math.inf` for never
    loading: float = 0.0  # share of the weights in place, while loading
    load_s: float = 0.0  # how long loading took
    watch: asyncio.Task[None] | None = None  # looks after the runner while it is used
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # set once it is out of the table

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
        return self.runner is not None and self.plan.serves(
            wanted, self.runner.info.context_length, self.runner.info.engine
        )

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
