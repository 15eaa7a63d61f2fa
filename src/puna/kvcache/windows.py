"""Caches of attention with a limited reach: a sliding window, or chunks.

Positions out of reach are dropped.
"""

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


class SlidingCache(LimitedCache):
    """Every position sees `window` keys: itself and the `window - 1` before it.

    That is what transformers and the papers mean by a window; Ollama's engine let one more be seen. When a
    pass begins, the last `keep` positions of each sequence (default: as many as the window) are kept. Even by
    default that is one more than the next input sees, so that a sequence can be resumed before the token that
    ended it. A larger number lets more be removed from the end, as when reasoning is left out of what is sent
    again. Other options are those of `CausalCache`.
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
    """Every position p sees positions from p - p % `chunk` to itself.

    A chunk is kept whole while one of the last `keep` positions (default: as many as a chunk has) lies in it.
    Removing positions from the middle moves the later ones, maybe into other chunks. Other options are those
    of `CausalCache`.
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
            raise ValueError(
                f"chunks of {chunk} positions of which the last {keep} positions are kept make no sense"
            )
        super().__init__(ops, shapes, span=chunk, reach=keep, **options)
        self._chunk = chunk

    def _first_visible(self, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        return positions - positions % self._chunk
