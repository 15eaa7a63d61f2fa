"""The cache of a split model: its books and the first stage's storage here, copies of the books elsewhere.

Books are a function of the commands that changed them, so the caches of all stages stay alike by repeating
the first one's commands in order, and none is ever asked for anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

import numpy as np

from puna.batch import Batch
from puna.kvcache.cache import Cache, Compacting, LayerCache, LayerState, Picturing
from puna.kvcache.contents import CellCounts, Contents, Extents
from puna.model.split.wire import Compact, CopyPrefix, LimitCells, Remove, StageMessage, Undo, packed

#: Rows of prompts that are passed on together, so that all stages compute at the same time.
ROWS_TOGETHER = 128


class SplitCache(Cache):
    """The first stage's cache, whose changes are told to the other stages by `tell`.

    A pass over a long batch consists of several pieces, each with a forward pass of its own; see
    `puna.model.split.model`. Sequences cannot be saved, since no process has all of their keys.
    """

    def __init__(
        self, own: Cache, tell: Callable[[StageMessage], object], give_up: Callable[[str], Exception]
    ) -> None:
        """`give_up` makes the other stages useless, and returns an error that says why."""
        self.own = own
        self.context = own.context
        self.pieces: list[Batch] = []  # of the current pass; the cache has made room for the first `begun`
        self.begun = 0
        self.sent = 0  # pieces that are known to the other stages
        self._tell = tell
        self._give_up = give_up

    # --- a forward pass ---------------------------------------------------------------------------

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        action, pieces = self.own.plan_forward(batch), cut(batch)
        if len(pieces) > 1:
            action = self.own.plan_forward(pieces[0])
        return partial(self._begin, pieces, action)

    def _begin(self, pieces: list[Batch], action: Callable[[], None]) -> None:
        action()
        self.pieces, self.begun, self.sent = pieces, 1, 0

    def begin_piece(self, number: int) -> Batch:
        """Make room for a piece of the pass, of which the first has room already, and return it."""
        piece = self.pieces[number]
        if number >= self.begun:
            self.own.start_forward(piece)  # there is room for the whole pass
            self.begun = number + 1
        return piece

    def undo_forward(self) -> None:
        """Forget the rows of the last pass.

        Raises `ModelLostError` if the pass had several pieces, since caches forget when each begins.
        """
        if self.begun > 1:
            raise self._give_up("a pass that other stages have begun has failed")
        self.own.undo_forward()
        self._tell(Undo() if self.sent else Undo(batch=packed(self.pieces[0], whole=False, images=False)[0]))

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


def cut(batch: Batch) -> list[Batch]:
    """Return consecutive pieces of a batch, of some `ROWS_TOGETHER` rows or more.

    Rows of a span, of an image and of a sequence with drafts stay together, and so do the last two of each
    sequence: caches of states keep the one before the last of several.
    """
    count, rows = len(batch), ROWS_TOGETHER
    if count <= rows * 3 // 2:
        return [batch]
    may_end = np.ones(count + 1, bool)  # before each row
    for begin, end in (*batch.spans, *((row, row + len(payload)) for row, payload in batch.payloads)):
        may_end[begin + 1 : end] = False
    goes_on = batch.sequences[1:] == batch.sequences[:-1]  # each row but the first
    is_last = np.append(~goes_on[1:], True)
    may_end[1:count][goes_on & (is_last | np.isin(batch.sequences[1:], list(batch.drafts)))] = False
    places = may_end.nonzero()[0]
    ends = [0]
    while ends[-1] < count:
        later = places[places >= ends[-1] + rows]
        ends.append(int(later[0]) if len(later) and count - later[0] > rows // 2 else count)
    return [_piece(batch, begin, end) for begin, end in pairwise(ends)]


def _piece(batch: Batch, begin: int, end: int) -> Batch:
    """Return rows [begin, end) of a batch."""
    wanted = np.arange(len(batch)) if batch.outputs is None else batch.outputs
    wanted = wanted[(wanted >= begin) & (wanted < end)] - begin
    sequences = batch.sequences[begin:end]
    return Batch(
        tokens=batch.tokens[begin:end],
        positions=batch.positions[begin:end],
        sequences=sequences,
        outputs=None if len(wanted) == end - begin else wanted,
        payloads=[(row - begin, payload) for row, payload in batch.payloads if begin <= row < end],
        spans=[(first - begin, last - begin) for first, last in batch.spans if begin <= first < end],
        drafts={s: count for s, count in batch.drafts.items() if (sequences == s).any()},
        places=None if batch.places is None else batch.places[begin:end],
    )
