"""The free cells, found without looking at all cells."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Free cells are counted in blocks of this many: a million cells make 4096 counts to search.
_BLOCK = 256
_SHIFT = 8


class FreeCells:
    """The free ones of `capacity` cells; the lowest are handed out first, so that use stays dense."""

    def __init__(self, capacity: int) -> None:
        blocks = -(-capacity // _BLOCK)
        self.count = capacity
        self._capacity = capacity
        # Zeros take no memory until they are written to: most cells of a large cache are never used.
        self._used = np.zeros(blocks * _BLOCK, dtype=bool)  # [cells], those beyond the capacity always
        self._used[capacity:] = True
        self._in_blocks = np.full(blocks, _BLOCK, dtype=np.int16)  # free ones of each
        self._in_blocks[-1:] -= blocks * _BLOCK - capacity
        self._lowest = 0  # no block before this has a free cell

    def take(self, count: int) -> NDArray[np.int32]:
        """The `count` lowest free cells, ascending. There must be as many."""
        if not count:
            return np.empty(0, dtype=np.int32)
        blocks = self._in_blocks[self._lowest :].nonzero()[0][:count] + self._lowest
        sums = self._in_blocks[blocks].cumsum()
        last = int(sums.searchsorted(count))
        blocks = blocks[: last + 1]
        found = (~self._used.reshape(-1, _BLOCK)[blocks]).ravel().nonzero()[0][:count]
        cells: NDArray[np.int32] = (blocks[found >> _SHIFT] * _BLOCK + (found & (_BLOCK - 1))).astype(
            np.int32
        )
        self._used[cells] = True
        self._in_blocks[blocks] = 0
        self._in_blocks[blocks[last]] = sums[last] - count
        self._lowest = int(blocks[last])
        self.count -= count
        return cells

    def claim(self, cells: NDArray[np.int32]) -> None:
        """Take just these free `cells` (distinct)."""
        self._used[cells] = True
        np.subtract.at(self._in_blocks, cells >> _SHIFT, 1)
        self.count -= len(cells)

    def give(self, cells: NDArray[np.int32]) -> None:
        """`cells` (distinct) are free again."""
        if not len(cells):
            return
        self._used[cells] = False
        blocks = cells >> _SHIFT
        lowest = int(blocks.min())
        counts = np.bincount(blocks - lowest)
        self._in_blocks[lowest : lowest + len(counts)] += counts
        self._lowest = min(self._lowest, lowest)
        self.count += len(cells)

    def is_free(self) -> NDArray[np.bool_]:
        """Whether each cell is free [capacity]."""
        return ~self._used[: self._capacity]

    def highest_used(self) -> int:
        """One more than the highest cell in use; 0 when all are free."""
        partly = (self._in_blocks < _BLOCK).nonzero()[0]
        for block in partly[
            :-3:-1
        ].tolist():  # the last block may only seem so, being cut off by the capacity
            cells = range(block * _BLOCK, min((block + 1) * _BLOCK, self._capacity))
            used = self._used[cells.start : cells.stop].nonzero()[0]
            if len(used):
                return cells.start + int(used[-1]) + 1
        return 0
