"""Caches of sliding-window and chunked attention, which drop positions out of reach."""

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

    A position is needed if it is visible to the next input of its sequence, or to an input up to `reach`
    positions before that: a sequence can always be resumed that far back, for instance to reuse a prefix.
    When a pass starts, positions are dropped in all sequences: the rows of the batch still see all that they
    must, and sequences outside the batch give up what only their last batch needed.
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
        """`span` is the largest number of positions visible to an input."""
        super().__init__(ops, shapes, **options)
        self._span = span
        self._reach = reach

    @property
    def forgets(self) -> bool:
        return True

    def room(self, wanted: int) -> int:
        free = self.cells.free
        if free < wanted:  # unneeded positions are dropped when a pass starts
            free += self.cells.freed_by(self.cells.expired(self._needed_from()))
        return min(wanted, free)

    def _max_cells(self, sequences: int, capacity: int, batch: int) -> int:
        kept = self._reach + self._span - 1  # positions of a sequence when a pass starts
        return min(capacity, sequences * kept + batch)

    @abstractmethod
    def _first_visible(self, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the first position that is visible to an input at each of `positions`."""

    def _needed_from(self) -> NDArray[np.int32]:
        return self._first_visible(np.maximum(self.cells.length - self._reach, 0))


class SlidingCache(LimitedCache):
    """A cache in which every position sees `window` keys: itself and the `window - 1` before it.

    Transformers and the papers define windows this way; Ollama's engine includes one more key. When a pass
    begins, the last `keep` positions of each sequence are kept (default: `window`). Even the default is one
    more than the next input sees, so that a sequence can be resumed before the token that ended it. With a
    larger `keep`, more can be removed from the end, as when a client sends an answer back without its
    reasoning. The other options are those of `CausalCache`.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Sequence[KVShape] | Mapping[int, KVShape],
        *,
        window: int,
        keep: int | None = None,
        **options: Any,
    ) -> None:
        keep = window if keep is None else keep
        if window < 1 or keep < window:
            raise ValueError(f"a sliding window of {window} positions cannot keep only {keep} of them")
        super().__init__(ops, shapes, span=window, reach=keep - window + 1, **options)
        self._window = window

    def _first_visible(self, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.maximum(positions - (self._window - 1), 0)


class ChunkedCache(LimitedCache):
    """A cache in which every position p sees the positions from p - p % `chunk` to itself.

    A chunk is kept whole while one of the last `keep` positions (default: `chunk`) lies in it. Removing
    positions from the middle moves the later ones, possibly into other chunks. The other options are those of
    `CausalCache`.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Sequence[KVShape] | Mapping[int, KVShape],
        *,
        chunk: int,
        keep: int | None = None,
        **options: Any,
    ) -> None:
        keep = chunk if keep is None else keep
        if chunk < 1 or keep < 0:
            raise ValueError(f"chunks of {chunk} positions cannot keep only the last {keep} positions")
        super().__init__(ops, shapes, span=chunk, reach=keep, **options)
        self._chunk = chunk

    def _first_visible(self, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        return positions - positions % self._chunk
