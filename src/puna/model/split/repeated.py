"""A cache that is kept in several processes, each with a part of the keys and values of every sequence.

Books are a function of the commands that changed them, so the caches of all processes stay alike by repeating
the first one's commands in order, and none is ever asked for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from puna.batch import Batch
from puna.kvcache.cache import Cache, Compacting, LayerCache, LayerState, Picturing
from puna.kvcache.contents import CellCounts, Contents, Extents
from puna.kvcache.types import KVTypes
from puna.model.split.wire import (
    Compact,
    CopyPrefix,
    LimitCells,
    MakeCache,
    Pass,
    Remove,
    StageMessage,
    Undo,
    packed,
    unpacked,
)
from puna.ops import Backend

if TYPE_CHECKING:
    from puna.model.decoder import Decoder


class RepeatedCache(Cache):
    """The first process's cache, whose changes are told to the others by `tell`.

    Sequences cannot be saved, since no process has all of their keys.
    """

    def __init__(self, own: Cache, tell: Callable[[StageMessage], object]) -> None:
        self.own = own
        self.context = own.context
        self.batch: Batch | None = None  # of the current pass
        self.told = False  # whether the others know of the pass
        self._tell = tell

    # --- a forward pass ---------------------------------------------------------------------------

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        return partial(self._begin, batch, self.own.plan_forward(batch))

    def _begin(self, batch: Batch, action: Callable[[], None]) -> None:
        action()
        self.batch, self.told = batch, False

    def undo_forward(self) -> None:
        """Forget the rows of the last pass."""
        assert self.batch is not None
        self.own.undo_forward()
        self._tell(Undo() if self.told else Undo(batch=packed(self.batch, whole=False, images=False)[0]))

    @property
    def generation(self) -> int | None:
        return None  # a pass through other processes cannot be replayed

    def layer(self, index: int) -> LayerCache:
        return self.own.layer(index)

    def state(self, index: int) -> LayerState:
        return self.own.state(index)

    # Side passes leave the books as they were, and prediction heads are in the first stage.

    def start_side_pass(self, layer: int, batch: Batch, *, first: int) -> None:
        self.own.start_side_pass(layer, batch, first=first)

    def end_side_passes(self) -> None:
        self.own.end_side_passes()

    # --- between passes ---------------------------------------------------------------------------

    def plan_removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        action = self.own.plan_removal(sequence, begin, end)

        def remove() -> None:
            action()
            self._tell(Remove(sequence=sequence, begin=begin, end=end))

        return remove

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        self.own.copy_prefix(source, target, count)
        self._tell(CopyPrefix(source=source, target=target, count=count))

    def limit_cells(self, count: int) -> None:
        self.own.limit_cells(count)
        self._tell(LimitCells(count=count))

    def compact(self, limit: int = 256) -> bool:
        if not isinstance(self.own, Compacting):
            return False
        more = self.own.compact(limit)
        self._tell(Compact(limit=limit))
        return more

    # --- facts ------------------------------------------------------------------------------------

    @property
    def layers(self) -> Iterable[int]:
        return self.own.layers

    @property
    def max_drafts(self) -> int:
        return self.own.max_drafts

    def room(self, wanted: int) -> int:
        return self.own.room(wanted)

    def length(self, sequence: int) -> int:
        return self.own.length(sequence)

    def resume_point(self, sequence: int, position: int) -> int:
        return self.own.resume_point(sequence, position)

    @property
    def forgets(self) -> bool:
        return self.own.forgets

    @property
    def resumes_anywhere(self) -> bool:
        return self.own.resumes_anywhere

    @property
    def kind(self) -> str:
        return self.own.kind

    def counts(self) -> list[CellCounts]:
        return self.own.counts()

    def contents(self) -> list[Contents]:
        return self.own.contents() if isinstance(self.own, Picturing) else []

    def extents(self) -> list[Extents]:
        return self.own.extents() if isinstance(self.own, Picturing) else []

    @property
    def allocated_bytes(self) -> int:
        return self.own.allocated_bytes

    def layer_bytes(self, *, sequences: int, capacity: int, batch: int) -> dict[int, int]:
        return self.own.layer_bytes(sequences=sequences, capacity=capacity, batch=batch)

    def bookkeeping_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        return self.own.bookkeeping_bytes(sequences=sequences, longest=longest, capacity=capacity)

    def is_countable(self, *, sequences: int, longest: int, capacity: int) -> bool:
        return self.own.is_countable(sequences=sequences, longest=longest, capacity=capacity)

    def reserved_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        return self.own.reserved_bytes(sequences=sequences, longest=longest, capacity=capacity)

    @property
    def provided_bytes(self) -> int:
        return self.own.provided_bytes

    def close(self) -> None:
        self.own.close()


def cache_for(message: MakeCache, model: Decoder, before: Cache | None) -> Cache:
    """Return the cache that the first process made, once the one `before` is closed."""
    if before is not None:
        before.close()
    return model.make_cache(
        sequences=message.sequences,
        context=message.context,
        capacity=message.capacity,
        types=KVTypes.parse(message.types),
    )


def repeat(message: StageMessage, cache: Cache, ops: Backend) -> None:
    """Do what the first process did to its cache between passes. Raises `RunnerError`."""
    match message:
        case Undo(batch=None):
            cache.undo_forward()
        case Undo(batch=Pass() as failed):
            cache.start_forward(unpacked(failed, [], ops))
            cache.undo_forward()
        case Remove():
            cache.remove(message.sequence, message.begin, message.end)
        case CopyPrefix():
            cache.copy_prefix(message.source, message.target, message.count)
        case LimitCells():
            cache.limit_cells(message.count)
        case Compact():
            if isinstance(cache, Compacting):
                cache.compact(message.limit)
