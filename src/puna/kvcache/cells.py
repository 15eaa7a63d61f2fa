"""The bookkeeping of a cache, without tensors: free cells, and the list of cells of each sequence.

A cell is one row of every layer's key and value storage. A sequence is a list of cells, with entry i for
position i. Caches that forget positions drop entries from the front, and `first` is the index of the first
entry left. A cell can be anywhere in the storage. Several sequences may hold the same cell (`share`), which
must not be written then.

The lists are rows of one table, so the cells visible to a batch row are a start and a count in the flattened
table, and no list is ever copied or searched. Dropping entries does not move the others, because the places
where attention divides a list into blocks must depend on positions alone. Compaction makes the cells of each
sequence contiguous, a few at a time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.errors import CacheFullError
from puna.ops.backend import list_width

if TYPE_CHECKING:
    from numpy.typing import NDArray


class FreeCells:
    """The free cells among `capacity`; the lowest are taken first, which keeps the used ones dense."""

    def __init__(self, capacity: int) -> None:
        self.count = capacity
        self._used = bytearray(capacity)  # 1 or 0 for each: searching bytes is as fast as copying them
        self._is_used = np.frombuffer(self._used, np.bool_)  # the same memory
        self._lowest = 0  # no cell before this is free

    def take(self, count: int) -> NDArray[np.int32]:
        """Take and return the `count` lowest free cells, ascending. There must be that many."""
        cells: list[int] = []
        end = self._lowest
        while (left := count - len(cells)) > 0:
            begin = self._used.index(0, end)
            end = self._used.find(1, begin, begin + left)
            if end < 0:
                end = begin + left
            cells += range(begin, end)
        taken = np.array(cells, np.int32)
        self._is_used[taken] = True
        self._lowest = end
        self.count -= count
        return taken

    def claim(self, cells: NDArray[np.int32]) -> None:
        """Take the given `cells`, which are free and distinct."""
        self._is_used[cells] = True
        self.count -= len(cells)

    def give(self, cells: NDArray[np.int32]) -> None:
        """Mark `cells` (distinct) as free."""
        if not len(cells):
            return
        self._is_used[cells] = False
        self._lowest = min(self._lowest, int(cells.min()))
        self.count += len(cells)

    def is_free(self) -> NDArray[np.bool_]:
        """Whether each cell is free [capacity]."""
        return ~self._is_used

    def highest_used(self) -> int:
        """One more than the highest cell in use; 0 when all are free."""
        return self._used.rfind(1) + 1


#: Bytes of bookkeeping per cell beside the table: its reference count, and whether it is free.
CELL_BYTES: Final = 5


def table_shape(sequences: int, longest: int) -> tuple[int, int]:
    """Return the shape of the table for `sequences` lists of at most `longest` entries.

    Its rows are aligned, so that attention rounds alike for all sequences.
    """
    return sequences, list_width(longest)


def table_bytes(sequences: int, longest: int) -> int:
    """Return the bytes of that table."""
    return 4 * math.prod(table_shape(sequences, longest))


class Cells:
    """Bookkeeping of `capacity` cells; row s of `table` (see `table_shape`) lists those of sequence s.

    If `mirrored`, changes of the table are recorded, so that a copy of it can be updated.
    """

    def __init__(
        self, capacity: int, longest: int, table: NDArray[np.int32], *, mirrored: bool = False
    ) -> None:
        sequences = len(table)
        self.capacity = capacity
        self.limit = capacity  # cells that may be in use
        self.longest = longest  # maximum entries of a sequence
        self.table = table
        self.first: NDArray[np.int32] = np.zeros(sequences, dtype=np.int32)
        self.length: NDArray[np.int32] = np.zeros(sequences, dtype=np.int32)
        self.references: NDArray[np.int32] = np.zeros(capacity, dtype=np.int32)
        self.free_cells = FreeCells(capacity)
        self._mirrored = mirrored
        self._changed: dict[int, int] = {}  # by sequence, the first entry written since `take_changes`

    @property
    def free(self) -> int:
        """Number of cells that may still be taken; negative if more than `limit` are in use."""
        return self.free_cells.count - (self.capacity - self.limit)

    @property
    def highest_used(self) -> int:
        """One more than the highest cell that a sequence holds."""
        return self.free_cells.highest_used()

    def cells(self, sequence: int) -> NDArray[np.int32]:
        """Return the cells of `sequence` in order of position: a view, valid until the next change."""
        return self.table[sequence, self.first[sequence] : self.length[sequence]]

    def allocate(self, count: int) -> NDArray[np.int32]:
        """Take and return the `count` lowest free cells, ascending, with one reference each.

        Raises `CacheFullError`, changing nothing, when fewer are free.
        """
        self.check_room(count, self.free)
        chosen = self.free_cells.take(count)
        self.references[chosen] = 1
        return chosen

    def check_room(self, count: int, free: int) -> None:
        """Raise `CacheFullError` if `count` is more than the number of `free` cells."""
        if count > free:
            raise CacheFullError(
                f"the cache has {max(free, 0)} free cells of {self.limit}, and {count} are needed; "
                "use a larger num_ctx or fewer parallel requests"
            )

    def release(self, cells: NDArray[np.int32]) -> None:
        """Drop one reference to each of `cells` (distinct), and free those without any."""
        if not len(cells):
            return
        left = self.references[cells] - 1
        self.references[cells] = left
        self.free_cells.give(cells[left == 0])

    def append(
        self, sequences: NDArray[np.int32], entries: NDArray[np.int32], cells: NDArray[np.int32]
    ) -> None:
        """Append allocated cells: `cells[i]` becomes entry `entries[i]` of `sequences[i]`.

        Entries of the same sequence are in ascending order and follow its last one.
        """
        self.table[sequences, entries] = cells
        if self._mirrored:
            for sequence, entry in zip(sequences.tolist(), entries.tolist(), strict=True):
                self._change(sequence, entry)
        self.length[sequences] = entries + 1  # the last row of a sequence is assigned last

    def put(self, sequence: int, first: int, cells: NDArray[np.int32]) -> None:
        """Make allocated `cells` the entries of `sequence`, which must be empty, from index `first` on."""
        end = first + len(cells)
        self.table[sequence, first:end] = cells
        self._change(sequence, first)
        self.first[sequence], self.length[sequence] = first, end

    def share(self, source: int, target: int, count: int) -> None:
        """Make `target` the first `count` entries of `source`, releasing the cells it held before."""
        count = min(count, int(self.length[source]))
        first = min(int(self.first[source]), count)
        shared = self.table[source, first:count]
        self.references[shared] += 1  # first, since `target` may hold the same cells
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
        """Remove entries [begin, end) of `sequence`; later entries move down."""
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
        """Return the cells of entries before `firsts` [sequences]; a shared cell occurs once per sequence."""
        counts = np.minimum(firsts, self.length) - self.first
        late = (counts > 0).nonzero()[0]
        counts = counts[late]
        total = int(counts.sum())
        steps = np.ones(total, dtype=np.int64)  # between indices of the flattened table
        begins = late * self.table.shape[1] + self.first[late]
        if total:
            heads = counts.cumsum() - counts
            steps[heads] = begins
            steps[heads[1:]] -= begins[:-1] + counts[:-1] - 1
        cells: NDArray[np.int32] = self.table.reshape(-1)[steps.cumsum()]
        return cells

    def freed_by(self, expired: NDArray[np.int32]) -> int:
        """Return how many cells become free when the references `expired` are dropped."""
        cells, counts = np.unique(expired, return_counts=True)
        return int((self.references[cells] == counts).sum())

    def expire(self, firsts: NDArray[np.int32]) -> None:
        """Drop the entries before `firsts` [sequences]; the others do not move."""
        cells = self.expired(firsts)
        if len(cells):
            cells.sort()
            np.subtract.at(self.references, cells, 1)
            freed = self.references[cells] == 0
            freed[1:] &= cells[1:] != cells[:-1]  # two sequences may have dropped the same cell
            self.free_cells.give(cells[freed])
        np.maximum(self.first, np.minimum(firsts, self.length), out=self.first)

    def replace(self, sequence: int, entries: NDArray[np.int64], cells: NDArray[np.int32]) -> None:
        """Replace the cells at indices `entries` of `sequence` by allocated `cells`."""
        self.release(self.table[sequence, entries])
        self.table[sequence, entries] = cells
        if len(entries):
            self._change(sequence, int(entries[0]))

    def moved(self, places: NDArray[np.int32]) -> None:
        """Update the lists after the contents of every cell c have moved to cell `places[c]`."""
        for sequence in range(len(self.length)):
            row = self.cells(sequence)
            row[:] = places[row]
            self._change(sequence, int(self.first[sequence]))

    def take_changes(self) -> list[tuple[int, int]]:
        """Return the ranges [begin, end) of the flattened table written since the last call.

        Empty unless `mirrored`.
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
        """Raise `AssertionError` if the bookkeeping is inconsistent. For tests; O(capacity)."""
        counted = np.zeros(self.capacity, dtype=np.int32)
        for sequence in range(len(self.length)):
            cells = self.cells(sequence)
            if len(np.unique(cells)) != len(cells):
                raise AssertionError(f"sequence {sequence} holds a cell twice")
            counted[cells] += 1
        if not np.array_equal(counted, self.references):
            raise AssertionError("reference counts differ from the cells that sequences hold")
        if not np.array_equal(counted == 0, self.free_cells.is_free()):
            raise AssertionError("the free list differs from the cells that no sequence holds")
        if self.free != int((counted == 0).sum()):
            raise AssertionError(f"{self.free} cells are said to be free, {int((counted == 0).sum())} are")


def plan_moves(cells: Cells, limit: int) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
    """Return (sources, targets) of moves of up to `limit` cells to their final places; None if all are there.

    The final places are the lowest cells, sequence after sequence, each in order of position; a shared cell
    belongs to the first sequence that holds it. Used cells in the way move to the places that become vacant.
    """
    lists = [cells.cells(sequence) for sequence in range(len(cells.length))]
    order = np.concatenate(lists)
    rank = np.empty(cells.highest_used, dtype=np.int32)
    rank[order[::-1]] = np.arange(len(order), dtype=np.int32)[::-1]
    order = order[rank[order] == np.arange(len(order))]  # each cell at its first occurrence
    targets = (order != np.arange(len(order))).nonzero()[0][:limit].astype(np.int32)
    if not len(targets):
        return None
    sources = order[targets]
    in_the_way = np.setdiff1d(targets, sources, assume_unique=True)
    in_the_way = in_the_way[cells.references[in_the_way] > 0]
    vacated = np.setdiff1d(sources, targets, assume_unique=True)[: len(in_the_way)]
    return np.concatenate([sources, in_the_way]), np.concatenate([targets, vacated])


def move(cells: Cells, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
    """Update the bookkeeping after the contents were copied as returned by `plan_moves`."""
    places = np.arange(cells.highest_used, dtype=np.int32)
    places[sources] = targets
    cells.moved(places)
    references = cells.references[sources]
    cells.references[sources] = 0
    cells.references[targets] = references
    cells.free_cells.claim(np.setdiff1d(targets, sources, assume_unique=True))
    cells.free_cells.give(np.setdiff1d(sources, targets, assume_unique=True))
