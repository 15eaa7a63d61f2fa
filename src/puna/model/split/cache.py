"""The cache of a split model: its books and the first stage's storage here, copies of the books elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from puna.batch import Batch
from puna.kvcache.cache import Cache
from puna.model.split.repeated import RepeatedCache
from puna.model.split.wire import StageMessage

#: Rows of prompts that are passed on together, so that all stages compute at the same time.
ROWS_TOGETHER = 128


class SplitCache(RepeatedCache):
    """The first stage's cache, whose changes are told to the other stages by `tell`.

    A pass over a long batch consists of several pieces, each with a forward pass of its own; see
    `puna.model.split.model`.
    """

    def __init__(
        self, own: Cache, tell: Callable[[StageMessage], object], give_up: Callable[[str], Exception]
    ) -> None:
        """`give_up` makes the other stages useless, and returns an error that says why."""
        super().__init__(own, tell)
        self.pieces: list[Batch] = []  # of the current pass; the cache has made room for the first `begun`
        self.begun = 0
        self._give_up = give_up

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        action, pieces = self.own.plan_forward(batch), cut(batch)
        if len(pieces) > 1:
            action = self.own.plan_forward(pieces[0])
        return partial(self._begin_pieces, pieces, action)

    def _begin_pieces(self, pieces: list[Batch], action: Callable[[], None]) -> None:
        self._begin(pieces[0], action)
        self.pieces, self.begun = pieces, 1

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
        super().undo_forward()


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
