"""Which cell holds what: the bookkeeping of a cache, without any tensors.

A cell is one row of every layer's key and value storage. A sequence is an ordered list of cells,
its positions being consecutive: entry i of a sequence holds position `base + i`. Cells are placed
anywhere; several sequences may hold the same cell (`share`), which is then not to be written.

The lists are rows of one table, so that "the cells a batch row may see" is a start and a count
into the flattened table, and no list is ever copied or searched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from puna.errors import CacheFullError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Cells looked at first when searching for free ones; doubled until enough are found.
_SEARCH_WINDOW = 256
#: Lists begin at multiples of this in the flattened table, so that attention rounds alike for every sequence.
_ROW_ALIGNMENT = 512


class Cells:
    """Bookkeeping of `capacity` cells for `sequences` sequences of at most `longest` entries."""

    def __init__(self, capacity: int, sequences: int, longest: int) -> None:
        self.capacity = capacity
        self.longest = longest
        # np.zeros is lazily backed: rows never used cost address space, not memory.
        stride = -(-longest // _ROW_ALIGNMENT) * _ROW_ALIGNMENT
        self.table: NDArray[np.int32] = np.zeros((sequences, stride), dtype=np.int32)
        self.length: NDArray[np.int32] = np.zeros(sequences, dtype=np.int32)
        self.base: NDArray[np.int32] = np.zeros(sequences, dtype=np.int32)
        self.references: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.free = capacity
        self._lowest_free = 0  # no free cell has a smaller index

    def cells(self, sequence: int) -> NDArray[np.int32]:
        """The cells of `sequence` in order of position: a view, valid until the next change."""
        return self.table[sequence, : self.length[sequence]]

    def end(self, sequence: int) -> int:
        """The position the next entry of `sequence` must have."""
        return int(self.base[sequence] + self.length[sequence])

    def allocate(self, count: int) -> NDArray[np.int32]:
        """The `count` lowest free cells, ascending, now referenced once.

        Raises `CacheFullError`, changing nothing, when fewer are free.
        """
        if count > self.free:
            raise CacheFullError(
                f"the cache has {self.free} free cells of {self.capacity}, and {count} are needed; "
                "use a larger num_ctx or fewer parallel requests"
            )
        begin, window = self._lowest_free, max(_SEARCH_WINDOW, count)
        found = np.flatnonzero(self.references[begin : begin + window] == 0)
        while len(found) < count:
            window *= 2
            found = np.flatnonzero(self.references[begin : begin + window] == 0)
        chosen = (found[:count] + begin).astype(np.int32)
        self.references[chosen] = 1
        self.free -= count
        if count:
            self._lowest_free = int(chosen[-1]) + 1
        return chosen

    def release(self, cells: NDArray[np.int32]) -> None:
        """Drop one reference of each of `cells` (distinct); those without any become free."""
        if not len(cells):
            return
        self.references[cells] -= 1
        freed = cells[self.references[cells] == 0]
        if len(freed):
            self.free += len(freed)
            self._lowest_free = min(self._lowest_free, int(freed.min()))

    def append(
        self, sequences: NDArray[np.int32], entries: NDArray[np.int32], cells: NDArray[np.int32]
    ) -> None:
        """Already allocated `cells[i]` becomes entry `entries[i]` of `sequences[i]`, each at its end.

        Rows of one sequence are in ascending order of entry.
        """
        self.table[sequences, entries] = cells
        self.length[sequences] = entries + 1  # of several rows of a sequence the last one counts

    def share(self, source: int, target: int, count: int) -> None:
        """`target` becomes the first `count` entries of `source`; what it held before is released."""
        count = min(count, int(self.length[source]))
        shared = self.table[source, :count]
        self.references[shared] += 1  # before releasing: target may hold the same cells
        self.release(self.cells(target))
        self.table[target, :count] = shared
        self.length[target] = count
        self.base[target] = self.base[source]

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` entries of `sequence`."""
        self.release(self.table[sequence, length : self.length[sequence]])
        self.length[sequence] = min(length, int(self.length[sequence]))

    def cut(self, sequence: int, begin: int, end: int) -> None:
        """Take entries [begin, end) out of `sequence`; later entries move down."""
        length = int(self.length[sequence])
        row = self.table[sequence]
        self.release(row[begin:end])
        row[begin : begin + length - end] = row[end:length].copy()
        self.length[sequence] = length - (end - begin)

    def replace(self, sequence: int, entries: NDArray[np.int64], cells: NDArray[np.int32]) -> None:
        """Put already allocated `cells` in the place of `entries` (indices) of `sequence`."""
        self.release(self.table[sequence, entries])
        self.table[sequence, entries] = cells

    def check(self) -> None:
        """Raise `AssertionError` if the books do not balance. For tests; O(capacity)."""
        counted = np.zeros(self.capacity, dtype=np.int32)
        for sequence in range(len(self.length)):
            cells = self.cells(sequence)
            if len(np.unique(cells)) != len(cells):
                raise AssertionError(f"sequence {sequence} holds a cell twice")
            counted[cells] += 1
        if not np.array_equal(counted, self.references):
            raise AssertionError("reference counts differ from what the sequences hold")
        if self.free != int((counted == 0).sum()):
            raise AssertionError(f"{self.free} cells are said to be free, {int((counted == 0).sum())} are")
        if (self.references[: self._lowest_free] == 0).any():
            raise AssertionError("a free cell lies below the lowest free index")
