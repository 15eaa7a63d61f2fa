"""The bookkeeping of a cache, without any tensors: which cells are free, and which cell holds what.

A cell is one row of every layer's key and value storage. A sequence is an ordered list of cells, entry
i holding position i; a cache that forgets positions no input can see any more drops entries from the
front, and `first` says where the list really begins. Cells are placed anywhere; several sequences may
hold the same cell (`share`), which then must not be written.

The lists are rows of one table, so that "the cells a batch row may see" is a start and a count into the
flattened table, and no list is ever copied or searched. Entries stay at their positions when others are
dropped: where attention cuts a list into chunks depends on positions alone. Compaction brings the cells
of each sequence together, a few at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.errors import CacheFullError

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


#: Lists begin at multiples of this in the flattened table: then attention rounds the same for every sequence.
_ROW_ALIGNMENT = 512
#: Each cell's bookkeeping beside the table: how often it is held, and whether it is free.
CELL_BYTES: Final = 5


def table_shape(sequences: int, longest: int) -> tuple[int, int]:
    """Of the table with the lists of `sequences` sequences of at most `longest` entries."""
    return sequences, -(-longest // _ROW_ALIGNMENT) * _ROW_ALIGNMENT


def table_bytes(sequences: int, longest: int) -> int:
    """Return the size of that table."""
    return 4 * math.prod(table_shape(sequences, longest))


class Cells:
    """Bookkeeping of `capacity` cells for the sequences that `table` has rows for (see `table_shape`).

    With `mirrored` it notes what is written to the table, for those who keep a copy of it.
    """

    def __init__(
        self, capacity: int, longest: int, table: NDArray[np.int32], *, mirrored: bool = False
    ) -> None:
        sequences = len(table)
        self.capacity = capacity
        self.limit = capacity  # of the cells, how many may be in use
        self.longest = longest  # entries of a sequence
        self.table = table
        self.first: NDArray[np.int32] = np.zeros(sequences, dtype=np.int32)
        self.length: NDArray[np.int32] = np.zeros(sequences, dtype=np.int32)
        self.references: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.free_cells = FreeCells(capacity)
        self._mirrored = mirrored
        self._changed: dict[int, int] = {}  # by sequence, the first entry written since `take_changes`

    @property
    def free(self) -> int:
        """Number of cells that a sequence may take; below 0 where more are in use than may be."""
        return self.free_cells.count - (self.capacity - self.limit)

    @property
    def highest_used(self) -> int:
        """One more than the highest cell that a sequence holds."""
        return self.free_cells.highest_used()

    def cells(self, sequence: int) -> NDArray[np.int32]:
        """The cells of `sequence` in order of position: a view, valid until the next change."""
        return self.table[sequence, self.first[sequence] : self.length[sequence]]

    def allocate(self, count: int) -> NDArray[np.int32]:
        """The `count` lowest free cells, ascending, now referenced once.

        Raises `CacheFullError`, changing nothing, when fewer are free.
        """
        self.check_room(count, self.free)
        chosen = self.free_cells.take(count)
        self.references[chosen] = 1
        return chosen

    def check_room(self, count: int, free: int) -> None:
        """Raise `CacheFullError` when `count` cells are needed and fewer are `free`."""
        if count > free:
            raise CacheFullError(
                f"the cache has {max(free, 0)} free cells of {self.limit}, and {count} are needed; "
                "use a larger num_ctx or fewer parallel requests"
            )

    def release(self, cells: NDArray[np.int32]) -> None:
        """Drop one reference of each of `cells` (distinct); those without any become free."""
        if not len(cells):
            return
        left = self.references[cells] - 1
        self.references[cells] = left
        self.free_cells.give(cells[left == 0])

    def append(
        self, sequences: NDArray[np.int32], entries: NDArray[np.int32], cells: NDArray[np.int32]
    ) -> None:
        """Already allocated `cells[i]` becomes entry `entries[i]` of `sequences[i]`, each at its end.

        Rows of one sequence are in ascending order of entry.
        """
        self.table[sequences, entries] = cells
        if self._mirrored:
            for sequence, entry in zip(sequences.tolist(), entries.tolist(), strict=True):
                self._change(sequence, entry)
        self.length[sequences] = entries + 1  # of several rows of a sequence the last one counts

    def put(self, sequence: int, first: int, cells: NDArray[np.int32]) -> None:
        """Already allocated `cells` become all there is of `sequence`, which is empty, from `first` on."""
        end = first + len(cells)
        self.table[sequence, first:end] = cells
        self._change(sequence, first)
        self.first[sequence], self.length[sequence] = first, end

    def share(self, source: int, target: int, count: int) -> None:
        """`target` becomes the first `count` entries of `source`; what it held before is released."""
        count = min(count, int(self.length[source]))
        first = min(int(self.first[source]), count)
        shared = self.table[source, first:count]
        self.references[shared] += 1  # before releasing: target may hold the same cells
        self.release(self.cells(target))
        self.table[target, first:count] = shared
        self._change(target, first)
        self.first[target], self.length[target] = first, count

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the entries of `sequence` from `length` on."""
        first = int(self.first[sequence])
        self.release(self.table[sequence, max(length, first) : self.length[sequence]])
        self.length[sequence] = min(length, int(self.length[sequence]))
        self.first[sequence] = min(first, length)

    def cut(self, sequence: int, begin: int, end: int) -> None:
        """Take entries [begin, end) out of `sequence`; later entries move down."""
        first, length = int(self.first[sequence]), int(self.length[sequence])
        row = self.table[sequence]
        self.release(row[max(begin, first) : max(end, first)])
        moved = row[max(end, first) : length].copy()
        length -= end - begin
        row[length - len(moved) : length] = moved
        self._change(sequence, length - len(moved))
        self.first[sequence] = first if first < begin else max(begin, first - (end - begin))
        self.length[sequence] = length

    def expired(self, firsts: NDArray[np.int32]) -> NDArray[np.int32]:
        """The cells of entries before `firsts` [sequences], as often as a sequence holds them."""
        counts = np.minimum(firsts, self.length) - self.first
        late = (counts > 0).nonzero()[0]
        counts = counts[late]
        total = int(counts.sum())
        steps = np.ones(total, dtype=np.int64)  # entries of the flattened table, summed up below
        begins = late * self.table.shape[1] + self.first[late]
        if total:
            heads = counts.cumsum() - counts
            steps[heads] = begins
            steps[heads[1:]] -= begins[:-1] + counts[:-1] - 1
        cells: NDArray[np.int32] = self.table.reshape(-1)[steps.cumsum()]
        return cells

    def freed_by(self, expired: NDArray[np.int32]) -> int:
        """How many cells would become free by dropping the references `expired`."""
        cells, counts = np.unique(expired, return_counts=True)
        return int((self.references[cells] == counts).sum())

    def expire(self, firsts: NDArray[np.int32]) -> None:
        """Drop the entries before `firsts` [sequences]; no others move."""
        cells = self.expired(firsts)
        if len(cells):
            np.subtract.at(self.references, cells, 1)
            freed = cells[self.references[cells] == 0]
            self.free_cells.give(np.unique(freed))  # several sequences may have dropped the same cell
        np.maximum(self.first, np.minimum(firsts, self.length), out=self.first)

    def replace(self, sequence: int, entries: NDArray[np.int64], cells: NDArray[np.int32]) -> None:
        """Put already allocated `cells` in the place of `entries` (indices) of `sequence`."""
        self.release(self.table[sequence, entries])
        self.table[sequence, entries] = cells
        if len(entries):
            self._change(sequence, int(entries[0]))

    def moved(self, places: NDArray[np.int32]) -> None:
        """What every cell c holds has been moved to cell `places[c]`."""
        for sequence in range(len(self.length)):
            row = self.cells(sequence)
            row[:] = places[row]
            self._change(sequence, int(self.first[sequence]))

    def take_changes(self) -> list[tuple[int, int]]:
        """The stretches [begin, end) of the flattened table that were written since this was last called.

        None unless `mirrored`.
        """
        stride = self.table.shape[1]
        changes = [
            (sequence * stride + entry, sequence * stride + int(self.length[sequence]))
            for sequence, entry in self._changed.items()
            if entry < self.length[sequence]
        ]
        self._changed.clear()
        return changes

    def _change(self, sequence: int, entry: int) -> None:
        if self._mirrored:
            self._changed[sequence] = min(entry, self._changed.get(sequence, entry))

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
        if not np.array_equal(counted == 0, self.free_cells.is_free()):
            raise AssertionError("the free list differs from the cells that no sequence holds")
        if self.free != int((counted == 0).sum()):
            raise AssertionError(f"{self.free} cells are said to be free, {int((counted == 0).sum())} are")


def plan_moves(cells: Cells, limit: int) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Which cells go where, `limit` of them into their final place; None when all are in theirs.

    The final places are the lowest cells, sequence after sequence, each in order of position; a shared cell
    goes with the first that holds it. What is in the way goes where those it makes room for come from.
    """
    lists = [cells.cells(sequence) for sequence in range(len(cells.length))]
    order = np.concatenate(lists)
    rank = np.empty(cells.highest_used, dtype=np.int32)
    rank[order[::-1]] = np.arange(len(order), dtype=np.int32)[::-1]
    order = order[rank[order] == np.arange(len(order))]  # each cell once, where it comes first
    targets = (order != np.arange(len(order))).nonzero()[0][:limit].astype(np.int32)
    if not len(targets):
        return None
    sources = order[targets]
    in_the_way = np.setdiff1d(targets, sources, assume_unique=True)
    in_the_way = in_the_way[cells.references[in_the_way] > 0]
    vacated = np.setdiff1d(sources, targets, assume_unique=True)[: len(in_the_way)]
    return np.concatenate([sources, in_the_way]), np.concatenate([targets, vacated])


def move(cells: Cells, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
    """Updates the bookkeeping after the contents were copied as `plan_moves` said."""
    places = np.arange(cells.highest_used, dtype=np.int32)
    places[sources] = targets
    cells.moved(places)
    references = cells.references[sources]
    cells.references[sources] = 0
    cells.references[targets] = references
    cells.free_cells.claim(np.setdiff1d(targets, sources, assume_unique=True))
    cells.free_cells.give(np.setdiff1d(sources, targets, assume_unique=True))
