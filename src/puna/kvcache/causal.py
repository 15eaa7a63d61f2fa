"""The cache of causal attention: every position sees itself and all earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from puna.batch import Batch
from puna.errors import CacheFileError, CacheFullError, NotSupportedError, shown
from puna.kvcache.cache import KVView, Shift, check_removal
from puna.kvcache.saved import Saved
from puna.kvcache.storage import CellCache, KVShape, LayerStorage
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.ops import Array, Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CausalCache", "KVShape"]

#: Cells whose keys are rotated at once, which bounds the memory for them as float32.
_ROTATED_TOGETHER = 4096


class CausalCache(CellCache):
    """Keys and values of `sequences` sequences of at most `context` positions each.

    `shapes` belong to layers 0, 1, ..., or to the layers named by a mapping. All sequences share `capacity`
    cells (default: `sequences * context`). Storage is of `types` and takes memory only as cells come into
    use. Raises `NotSupportedError` when a layer's heads do not fill the blocks of a quantised type. `shift`
    rotates cached keys; without it the middle of a sequence cannot be removed. With `spans`, the rows of a
    batch's span all see each other.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Sequence[KVShape] | Mapping[int, KVShape],
        *,
        sequences: int,
        context: int,
        capacity: int | None = None,
        types: KVTypes = F16_TYPES,
        shift: Shift | None = None,
        spans: bool = True,
    ) -> None:
        named = shapes if isinstance(shapes, Mapping) else dict(enumerate(shapes))
        super().__init__(ops, named, sequences=sequences, longest=context, capacity=capacity, types=types)
        self._shift = shift
        self._spans = spans
        self._layers = {index: _Layer(self, index, stored) for index, stored in self.storage.layers.items()}
        self._generation = 0
        self._make_row_buffers(64)
        self._lengths_before = self.cells.length.copy()  # before the last start_forward
        self._lengths_beside: NDArray[np.int32] | None = None  # before the side passes
        self._passes = 0

    @property
    def generation(self) -> int | None:
        return self._generation + self.storage.moves

    # --- overridden by windows and chunks ---------------------------------------------------------

    def _first_visible(self, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the first position that is visible to an input at each of `positions`."""
        return np.zeros(len(positions), np.int32)

    def _needed_from(self) -> NDArray[np.int32] | None:
        """Return the first position of each sequence that is still needed; None if all are."""
        return None

    # --- a forward pass ---------------------------------------------------------------------------

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        cells, sequences, positions = self.cells, batch.sequences, batch.positions
        self._check_continues(sequences, positions)
        begins, ends = self._first_visible(positions), positions + 1
        for begin, end in batch.spans if self._spans else ():
            if not (0 <= begin < end <= len(batch)) or (sequences[begin:end] != sequences[begin]).any():
                raise ValueError(f"rows {begin} to {end} of the batch are not a span of one sequence")
            begins[begin:end] = np.minimum(begins[begin:end], positions[begin])
            ends[begin:end] = positions[end - 1] + 1
        self._check_complete(sequences, positions, begins)
        needed = self._needed_from()
        free = cells.free
        if free < len(batch) and needed is not None:
            free += cells.freed_by(cells.expired(needed))
        cells.check_room(len(batch), free)
        return partial(self._begin, sequences, positions, begins, ends, needed)

    def _begin(
        self,
        sequences: NDArray[np.int32],
        positions: NDArray[np.int32],
        begins: NDArray[np.int32],
        ends: NDArray[np.int32],
        needed: NDArray[np.int32] | None,
    ) -> None:
        cells, rows = self.cells, len(sequences)
        if needed is not None:
            cells.expire(needed)
        placed = self._allocate(rows)
        self._lengths_before = cells.length.copy()
        self._passes += 1
        cells.append(sequences, positions, placed)
        self._fill_rows(sequences, placed, begins, ends)

    def _fill_rows(
        self,
        sequences: NDArray[np.int32],
        placed: NDArray[np.int32],
        begins: NDArray[np.int32],
        ends: NDArray[np.int32],
    ) -> None:
        """Upload the cell of each row, and the range of its sequence's positions that it sees."""
        rows = len(sequences)
        if rows > self._row_buffers.host.shape[1]:
            self._make_row_buffers(2 * rows)
        if rows != len(self._batch_cells):
            self._show_rows(rows)
        buffers = self._row_buffers.host
        buffers[0, :rows] = placed
        np.multiply(sequences, self.cells.table.shape[1], out=buffers[1, :rows])
        buffers[1, :rows] += begins
        np.subtract(ends, begins, out=buffers[2, :rows])
        self._row_buffers.upload()
        self._upload_table()

    def _make_row_buffers(self, rows: int) -> None:
        """Allocate the buffers that passes fill for each row; their new addresses change `generation`."""
        self._generation += 1
        self._row_buffers = self._ops.index_buffer(3, rows)
        self._show_rows(0)

    def _show_rows(self, rows: int) -> None:
        array = self._row_buffers.array
        self._batch_cells, self._starts, self._counts = (array[i, :rows] for i in range(3))

    def _check_continues(self, sequences: NDArray[np.int32], positions: NDArray[np.int32]) -> None:
        cells = self.cells
        expected = cells.length[sequences]
        if len(sequences) > 1:
            same = sequences[1:] == sequences[:-1]
            expected[1:][same] = positions[:-1][same] + 1
        wrong = positions != expected
        if np.count_nonzero(wrong):  # of a few rows, several times as fast as `any`
            row = int(np.argmax(wrong))
            sequence = int(sequences[row])
            raise ValueError(
                f"sequence {sequence} continues at position {cells.length[sequence]} without gaps, "
                f"row {row} of the batch has position {positions[row]}"
            )
        if np.count_nonzero(positions >= cells.longest):
            sequence = int(sequences[np.argmax(positions)])
            raise CacheFullError(
                f"sequence {sequence} holds {cells.length[sequence]} positions, "
                f"{np.count_nonzero(sequences == sequence)} more would exceed the context of {cells.longest}"
            )

    def _check_complete(
        self, sequences: NDArray[np.int32], positions: NDArray[np.int32], begins: NDArray[np.int32]
    ) -> None:
        missing = begins < self.cells.first[sequences]
        if np.count_nonzero(missing):
            row = int(np.argmax(missing))
            sequence = int(sequences[row])
            raise ValueError(
                f"sequence {sequence} cannot be continued at position {positions[row]}: positions "
                f"{begins[row]} to {self.cells.first[sequence] - 1} are forgotten; ask can_resume first"
            )

    def start_side_pass(self, layer: int, batch: Batch, *, first: int) -> None:
        cells, sequences, positions = self.cells, batch.sequences, batch.positions
        if (positions < cells.first[sequences]).any():
            raise ValueError("a side pass has rows at positions that are forgotten")
        following = positions >= cells.length[sequences]
        fresh = self._allocate(int(following.sum()))
        if self._lengths_beside is None:
            self._lengths_beside = cells.length.copy()
        self._passes += 1
        cells.append(sequences[following], positions[following], fresh)
        begins = np.maximum(self._first_visible(positions), np.maximum(cells.first[sequences], first))
        self._fill_rows(sequences, cells.table[sequences, positions], begins, positions + 1)

    def start_reading(self, layers: Iterable[int], batch: Batch) -> None:
        sequences, positions = batch.sequences, batch.positions
        if (positions > self.cells.length[sequences]).any():
            raise ValueError("a row reads positions that its sequence does not have")
        self._passes += 1
        begins = np.maximum(self._first_visible(positions), self.cells.first[sequences])
        self._fill_rows(sequences, np.zeros_like(positions), begins, positions)
        for layer in layers:
            self._layers[layer].lend()

    def end_side_passes(self) -> None:
        if self._lengths_beside is not None:
            self._truncate_to(self._lengths_beside)
            self._lengths_beside = None

    def undo_forward(self) -> None:
        self._truncate_to(self._lengths_before)

    def _truncate_to(self, lengths: NDArray[np.int32]) -> None:
        for sequence in np.flatnonzero(self.cells.length > lengths).tolist():
            self.cells.truncate(sequence, int(lengths[sequence]))

    def layer(self, index: int) -> _Layer:
        return self._layers[index]

    def length(self, sequence: int) -> int:
        return int(self.cells.length[sequence])

    # --- between passes ---------------------------------------------------------------------------

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        self.cells.share(source, target, count)

    def plan_removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        cells = self.cells
        first, length = int(cells.first[sequence]), int(cells.length[sequence])
        check_removal(sequence, begin, end)
        if begin >= length or end == begin:
            return _nothing
        if end is None or end >= length:
            return partial(cells.truncate, sequence, begin)
        if self._shift is None:
            raise NotSupportedError("this model's keys cannot be moved to other positions")
        gone = end - begin
        left = first if first < begin else max(begin, first - gone)
        seen = int(self._first_visible(np.array([length - gone], dtype=np.int32))[0])
        if seen < left:
            raise NotSupportedError(
                f"without positions {begin} to {end - 1} sequence {sequence} would have to see positions "
                f"{seen} to {left - 1}, which are forgotten; evaluate it again"
            )
        references = cells.references[cells.table[sequence, :length]]
        shared = int((references[max(end, first) :] > 1).sum())
        cells.check_room(shared, cells.free + int((references[max(begin, first) : end] == 1).sum()))
        return partial(self._cut, sequence, begin, end)

    def _cut(self, sequence: int, begin: int, end: int) -> None:
        """Remove a middle and rotate the keys behind it, copying cells that another sequence shares."""
        cells, offset = self.cells, begin - end
        cells.cut(sequence, begin, end)
        begin = max(begin, int(cells.first[sequence]))
        row = cells.table[sequence, begin : cells.length[sequence]]
        shared = (cells.references[row] > 1).nonzero()[0]
        if len(shared):
            fresh = self._allocate(len(shared))
            self.storage.copy(row[shared], fresh)
            cells.replace(sequence, shared + begin, fresh)
        for piece in range(0, len(row), _ROTATED_TOGETHER):
            self._rotate(row[piece : piece + _ROTATED_TOGETHER], offset)

    def _rotate(self, cells: NDArray[np.int32], offset: int) -> None:
        assert self._shift is not None
        for index, layer in self.storage.layers.items():
            for stored in (layer,) if layer.indexer is None else (layer, layer.indexer):
                keys = stored.read_keys(self._ops, cells)
                self._shift(index, keys, offset)
                stored.write_keys(self._ops, cells, keys)

    def resume_point(self, sequence: int, position: int) -> int:
        position = min(position, self.length(sequence))
        seen = self._first_visible(np.array([position], dtype=np.int32))[0]
        return position if seen >= self.cells.first[sequence] else 0

    def save(self, sequence: int) -> Saved:
        cells = self.cells
        facts = {"first": [int(cells.first[sequence])], "length": [int(cells.length[sequence])]}
        return Saved(self.storage.read(cells.cells(sequence)), facts)

    def plan_restore(self, sequence: int, saved: Saved) -> Callable[[], None]:
        cells = self.cells
        firsts, length = saved.fact("first"), saved.length
        if len(firsts) != 1 or not 0 <= firsts[0] <= length:
            raise CacheFileError(
                f"a sequence cannot extend over positions {shown(firsts)} to {length}; the file is damaged"
            )
        first = firsts[0]
        if length > cells.longest:
            raise CacheFullError(f"{length} positions were saved, and the context is {cells.longest}")
        seen = int(self._first_visible(np.array([length], dtype=np.int32))[0])
        if seen < first:
            raise CacheFileError(
                f"positions before {first} were not saved, and this cache needs those from {seen} on; "
                "evaluate again"
            )
        self.storage.check_fits(saved, length - first)
        self._check_room_instead(sequence, length - first)
        return partial(self._restore, sequence, first, length, saved)

    def _restore(self, sequence: int, first: int, length: int, saved: Saved) -> None:
        cells = self.cells
        cells.truncate(sequence, 0)
        placed = self._allocate(length - first)
        cells.put(sequence, first, placed)
        self.storage.write(placed, saved)

    def close(self) -> None:
        self._layers.clear()
        super().close()


class _Layer:
    """One layer's cells during a pass."""

    def __init__(self, cache: CausalCache, index: int, stored: LayerStorage) -> None:
        self._cache = cache
        self._index = index
        self._put_in_pass = 0
        self._stored = stored
        if stored.indexer is not None:
            self.indexer = _Layer(cache, index, stored.indexer)

    def put(self, keys: Array, values: Array | None) -> None:
        cells = self._cache._batch_cells
        rows, given = len(cells), len(keys if values is None else values)
        if len(keys) != rows or given != rows:
            raise ValueError(f"the batch has {rows} rows, got {len(keys)} keys and {given} values")
        self._stored.put(self._cache._ops, cells, keys, values)
        self._put_in_pass = self._cache._passes

    def lend(self) -> None:
        """Allow `view` in a pass that only reads."""
        self._put_in_pass = self._cache._passes

    def view(self) -> KVView:
        cache = self._cache
        if self._put_in_pass != cache._passes:
            raise ValueError(
                f"layer {self._index} has not been given the keys of this pass; put comes before view"
            )
        return self._stored.view(cache._cell_table, cache._starts, cache._counts)


def _nothing() -> None:
    pass
