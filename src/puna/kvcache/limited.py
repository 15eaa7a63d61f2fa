"""Caches of attention that sees only so far back: what no input can see any more is dropped."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from puna.kvcache.causal import CausalCache
from puna.kvcache.storage import KVShape
from puna.ops import Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray


class LimitedCache(CausalCache):
    """A causal cache that drops positions that are no longer needed.

    Needed are the positions that the next input of a sequence sees, and those that an input up to `reach`
    positions before it would see: a sequence can always be resumed that far back, as reuse of a prefix does.
    Positions are dropped when a pass starts, in all sequences: the rows of the batch still see all they must,
    and a sequence outside the batch does not keep what only its last batch needed.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Sequence[KVShape] | Mapping[int, KVShape],
        *,
        span: int,
        reach: int,
        **options: Any,
    ) -> None:
        """`span` is the largest number of positions an input ever sees."""
        super().__init__(ops, shapes, **options)
        self._span = span
        self._reach = reach

    @property
    def forgets(self) -> bool:
        return True

    def room(self, wanted: int) -> int:
        free = self.cells.free
        if free < wanted:  # what is no longer needed is dropped when a pass starts
            free += self.cells.freed_by(self.cells.expired(self._needed_from()))
        return min(wanted, free)

    def _max_cells(self, sequences: int, capacity: int, batch: int) -> int:
        kept = self._reach + self._span - 1  # of a sequence, when a pass starts
        return min(capacity, sequences * kept + batch)

    @abstractmethod
    def _first_visible(self, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        """The first position an input at each of `positions` sees."""

    def _needed_from(self) -> NDArray[np.int32]:
        return self._first_visible(np.maximum(self.cells.length - self._reach, 0))
