"""A model of which this process computes only the first layers, and other processes the others.

The rows of a long batch are passed on in pieces, as soon as the layers here have computed them, so that all
stages compute at the same time. A step that only decodes is one piece: its time is that of reading weights,
which each stage would do again for every piece.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np

from puna.batch import Batch, BatchArrays
from puna.errors import ModelLostError, RunnerError
from puna.kvcache.cache import Cache
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.model.layer_cache import typical_bytes
from puna.model.split.cache import SplitCache
from puna.model.split.wire import Arrays, Broken, Greeting, Link, MakeCache, Rows, StageMessage, packed
from puna.model.split.worker import Inbox, read_all
from puna.model.staged import StagedModel
from puna.model.stages import ModelStage
from puna.ops import Array

T = TypeVar("T", Greeting, MakeCache, Rows)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.model.decoder import Decoder
    from puna.ops import Rope


@dataclass
class StageSums:
    """Sums over all passes for one stage."""

    rows: int = 0  # of batches
    compute_us: int = 0
    received_bytes: int = 0


@dataclass(frozen=True)
class OtherStage:
    """A stage in another process."""

    name: str  # for people, as `stage 2 (layers 10 to 19) on node b`
    layers: ModelStage


class OtherStages:
    """The connections of the first stage: to the second one, and from the last one.

    `on_loss` is called on a thread of its own once another stage is gone.
    """

    def __init__(
        self,
        down: Link,
        up: Link,
        stages: Sequence[OtherStage],
        on_loss: Callable[[ModelLostError], object] = lambda _: None,
    ) -> None:
        """`stages` are all but the first. Raises `ModelLostError` if they do not answer."""
        self.stages = list(stages)
        self.costs = [StageSums() for _ in range(len(stages) + 1)]
        self._down = down
        self._up = up
        self._on_loss = on_loss
        self._lost: ModelLostError | None = None
        self._closed = False
        self._inbox: Inbox = read_all(up)
        self._answers: Inbox = Inbox()
        threading.Thread(target=self._watch, name="puna-stages", daemon=True).start()
        self.tell(Greeting())
        self.greeting, _ = self.answer(Greeting)

    def tell(self, message: StageMessage, arrays: Arrays | tuple[()] = ()) -> None:
        """Send a message to all stages. Raises `ModelLostError`."""
        if self._lost is not None:
            raise self._lost
        try:
            self._down.send(message, arrays)
        except (OSError, RunnerError) as error:
            raise self.give_up(f"{self.stages[0].name} cannot be reached: {error}") from error

    def command(self, message: StageMessage) -> None:
        """Have the caches of all stages change as the one here did; without them, the next pass fails."""
        with contextlib.suppress(ModelLostError):
            self.tell(message)

    def answer(self, kind: type[T]) -> tuple[T, Arrays]:
        """Return what the last stage answers next. Raises `ModelLostError`."""
        received = self._answers.get()
        if not isinstance(received, tuple):
            raise self._lost or self.give_up("the connection with the last stage is closed")
        message, arrays = received
        if not isinstance(message, kind):
            raise self.give_up(f"a stage answered {type(message).__name__} instead of {kind.__name__}")
        return message, arrays

    @property
    def received_bytes(self) -> int:
        """Bytes that came back to the first stage."""
        return self._up.received_bytes

    def close(self) -> None:
        self._closed = True
        for link in (self._down, self._up):
            link.close()

    def _watch(self) -> None:
        """Pass on what comes from the last stage, and notice its end."""
        last = self.stages[-1].name
        while True:
            received = self._inbox.get()
            match received:
                case (Greeting() | MakeCache() | Rows(), _):
                    self._answers.put(received)
                    continue
                case (Broken() as broken, _):
                    known = 0 < broken.stage <= len(self.stages)
                    name = self.stages[broken.stage - 1].name if known else "a stage"
                    reason = f"{name} has failed: {broken.reason}"
                case None:
                    reason = f"{last} has ended, or a stage before it"
                case Exception():
                    reason = f"the connection with {last} broke: {received}"
                case (other, _):
                    reason = f"{last} sent {type(other).__name__}, which is no answer"
            error = self.give_up(reason)
            self._answers.put(error)
            if not self._closed:
                self._on_loss(error)
            return

    def give_up(self, reason: str) -> ModelLostError:
        """Use the stages no more, and return an error that says why: the first reason there was."""
        if self._lost is None:
            self._lost = ModelLostError(f"a part of the model is lost: {reason}")
        return self._lost


class SplitModel(StagedModel):
    """`RunnableModel` whose first stage is here; see `puna.model.base.RunnableModel`."""

    def __init__(self, first: Decoder, other_stages: OtherStages) -> None:
        super().__init__(first)
        self.other_stages = other_stages
        stage = first.options.stage
        assert stage is not None
        self._shows_images = first.reads_images(stage.end)
        self._cache: SplitCache | None = None  # the newest

    def make_cache(self, *, sequences: int, context: int, capacity: int, types: KVTypes) -> Cache:
        own = self.first.make_cache(sequences=sequences, context=context, capacity=capacity, types=types)
        self.other_stages.tell(
            MakeCache(sequences=sequences, context=context, capacity=capacity, types=str(types))
        )
        self.other_stages.answer(MakeCache)
        self._cache = SplitCache(own, self.other_stages.command, self.other_stages.give_up)
        return self._cache

    def cache_room(self, reserved: int = 0) -> int:
        available = self.first.cache_room(reserved)
        own = typical_bytes(self.first.sample_cache(F16_TYPES))
        taken = self._cache.provided_bytes if self._cache is not None else 0
        for other, room in zip(self.other_stages.stages, self.other_stages.greeting.room_bytes, strict=True):
            options = self.first.options.on(other.layers)
            theirs = typical_bytes(type(self.first)(options, self.ops).sample_cache(F16_TYPES))
            if own and theirs:
                available = min(available, room * own // theirs - taken)
        return max(available, 0)

    def sample_cache(self, types: KVTypes) -> Cache:
        return self.first.sample_cache(types)

    def hidden(self, batch: BatchArrays, cache: Cache) -> Array:
        assert isinstance(cache, SplitCache), "a split model has caches of its own"
        began, whole, row = time.monotonic(), batch.kept is not None, 0
        try:
            for number in range(len(cache.pieces)):
                piece = cache.begin_piece(number)
                with self.first.row_scales.part(row, row + len(piece), piece.outputs) as scales:
                    self._pass_on(piece, cache.own, scales, whole=whole)
                cache.told, row = True, row + len(piece)
            computed = time.monotonic()
            answers = [self._result() for _ in cache.pieces]
        except Exception as error:
            if cache.told and not isinstance(error, ModelLostError):
                raise self.other_stages.give_up(f"a pass failed half-way: {error}") from error
            raise
        own = self.other_stages.costs[0]
        own.compute_us += round((computed - began) * 1e6)
        own.received_bytes = self.other_stages.received_bytes
        carried = [self.ops.array(np.concatenate(parts)) for parts in zip(*answers, strict=True)]
        return self.first.finish(carried, batch)

    def _pass_on(
        self, piece: Batch, cache: Cache, scales: Mapping[int, NDArray[np.float32]], *, whole: bool
    ) -> None:
        """Run the layers here on a piece, and send the results to the next stage."""
        ops = self.ops
        arrays = piece.on(ops)
        found = self.first.run(self.first.embed(arrays), arrays, cache)
        message, states = packed(piece, whole=whole, images=self._shows_images)
        if scales:
            strengths = {number: each.tobytes() for number, each in scales.items()}
            message = msgspec.structs.replace(message, scales=strengths)
        carried: list[NDArray[np.float32]] = [np.asarray(ops.numpy(each)) for each in found]
        self.other_stages.tell(message, [*carried, *states])
        for cost in self.other_stages.costs:
            cost.rows += len(piece)

    def _result(self) -> Arrays:
        message, arrays = self.other_stages.answer(Rows)
        if len(message.spent) != len(self.other_stages.stages):
            raise self.other_stages.give_up("a stage answered something else than was asked")
        for cost, spent in zip(self.other_stages.costs[1:], message.spent, strict=True):
            cost.compute_us += spent.compute_us
            cost.received_bytes = spent.received_bytes
        return arrays

    def layer_ropes(self, context: int) -> list[Rope | None]:
        """See `Decoder.layer_ropes`."""
        return self.first.layer_ropes(context)
