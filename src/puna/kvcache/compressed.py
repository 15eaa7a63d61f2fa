"""The cache of attention to a window and to compressed entries, one for each group of positions.

DeepSeek-AI, "DeepSeek V4", 2026, sections 2.3.1 and 2.3.2: each group of positions makes an entry once its
last position is there. The entry is made of what each of them put into `inputs` and, if groups overlap, of
what those of the group before put there. Windows and entries are cells of one storage, so that attention
reads both through one list. A sequence can be resumed wherever its window and its inputs can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from puna.batch import Batch
from puna.errors import CacheFileError, CacheFullError, NotSupportedError
from puna.gguf import GGMLType
from puna.kvcache.cache import KVView, LayerCache, check_removal
from puna.kvcache.cells import CELL_BYTES, table_bytes, table_shape
from puna.kvcache.contents import Contents, Extents, Held
from puna.kvcache.saved import Saved
from puna.kvcache.storage import KVShape
from puna.kvcache.types import F16_TYPES, KVTypes
from puna.kvcache.windows import ChunkedCache, SlidingCache
from puna.kvcache.wrapper import WrapperCache, all_of
from puna.ops import Array, Backend

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

#: Inputs are not rounded, so that an entry has the same bits however its group was split into batches.
_INPUT_TYPES = KVTypes(GGMLType.F32, GGMLType.F32)


class GroupCache(ChunkedCache):
    """Inputs of each sequence's incomplete group and, if groups overlap, of the group before it.

    A row sees those up to its own. Its group is complete if it sees a multiple of `chunk` of them.
    """

    def __init__(
        self, ops: Backend, shapes: Mapping[int, KVShape], *, overlapping: bool, **options: Any
    ) -> None:
        super().__init__(ops, shapes, types=_INPUT_TYPES, spans=False, **options)
        self._before = self._chunk if overlapping else 0
        self._span += self._before

    def _first_visible(self, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.maximum(super()._first_visible(positions) - self._before, 0)


class EntryCache(SlidingCache):
    """A sliding window, and an entry for each complete group of positions, in the same storage.

    In the books of cells, row s has the window of sequence s, and row `sequences + s` its entries.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Mapping[int, KVShape],
        *,
        group_size: int,
        sequences: int,
        context: int,
        capacity: int | None = None,
        **options: Any,
    ) -> None:
        self._group_size, self._sequences = group_size, sequences
        cells = self._with_entries(capacity or sequences * context, sequences)
        super().__init__(ops, shapes, sequences=2 * sequences, context=context, capacity=cells, **options)

    def _with_entries(self, positions: int, sequences: int) -> int:
        """Return the cells that suffice for `positions` in windows and for their entries."""
        return positions + positions // self._group_size + sequences

    # --- a forward pass ---------------------------------------------------------------------------

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        act = super().plan_forward(batch)
        complete = int(self._completes(batch.positions).sum())
        self.cells.check_room(len(batch) + complete, self._free())
        return act

    def _free(self) -> int:
        """Return the free cells, and those that become free when a pass starts."""
        return self.cells.free + self.cells.freed_by(self.cells.expired(self._needed_from()))

    def _completes(self, positions: NDArray[np.int32]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = (positions + 1) % self._group_size == 0
        return found

    def _needed_from(self) -> NDArray[np.int32]:
        needed = super()._needed_from()
        needed[self._sequences :] = 0
        return needed

    def _begin(
        self,
        sequences: NDArray[np.int32],
        positions: NDArray[np.int32],
        begins: NDArray[np.int32],
        ends: NDArray[np.int32],
        needed: NDArray[np.int32] | None,
    ) -> None:
        cells, rows, complete = self.cells, len(sequences), self._completes(positions)
        if needed is not None:
            cells.expire(needed)
        placed = self._allocate(rows + int(complete.sum()))
        self._lengths_before = cells.length.copy()
        self._passes += 1
        cells.append(sequences, positions, placed[:rows])
        cells.append(
            sequences[complete] + self._sequences, positions[complete] // self._group_size, placed[rows:]
        )
        self._fill_rows(sequences, placed[:rows], begins, ends)
        buffers = self._entry_buffers.host
        buffers[0, :rows] = placed[:rows]  # what rows without an entry store is overwritten by their keys
        buffers[0, :rows][complete] = placed[rows:]
        buffers[1, :rows] = np.maximum(ends - self._group_size, 0)
        buffers[2, :rows] = (sequences + self._sequences) * cells.table.shape[1]
        buffers[3, :rows] = ends // self._group_size
        self._entry_buffers.upload()

    def _make_row_buffers(self, rows: int) -> None:
        self._entry_buffers = self._ops.index_buffer(4, rows)
        super()._make_row_buffers(rows)

    def _show_rows(self, rows: int) -> None:
        super()._show_rows(rows)
        array = self._entry_buffers.array
        self.targets, self.places, self._entry_starts, self._entry_counts = (
            array[i, :rows] for i in range(4)
        )

    def start_side_pass(self, layer: int, batch: Batch, *, first: int) -> None:
        raise KeyError(f"layer {layer} has entries, which no side pass can make")

    def start_reading(self, layers: Iterable[int], batch: Batch) -> None:
        raise NotSupportedError("entries cannot be read by another model")

    @property
    def most_entries(self) -> int:
        return self.cells.longest // self._group_size

    def put_entries(self, index: int, entries: Array, indexer: Array | None) -> None:
        """Store the entries of rows that complete a group, before the rows' own keys."""
        stored = self.storage.layers[index]
        stored.put(self._ops, self.targets, entries, None)
        if stored.indexer is not None and indexer is not None:
            stored.indexer.put(self._ops, self.targets, indexer, None)

    def entries(self, index: int) -> KVView:
        """Return the entries visible to the batch's rows, including those it completed."""
        stored = self.storage.layers[index]
        return stored.view(self._cell_table, self._entry_starts, self._entry_counts)

    def indexer_entries(self, index: int) -> KVView:
        """Return the keys by which entries are chosen."""
        stored = self.storage.layers[index].indexer
        assert stored is not None
        return stored.view(self._cell_table, self._entry_starts, self._entry_counts)

    # --- between passes ---------------------------------------------------------------------------

    def room(self, wanted: int) -> int:
        # Each sequence may complete one more group than its rows fill.
        rows = (self._free() - self._sequences) * self._group_size // (self._group_size + 1)
        return max(min(wanted, rows), 0)

    def limit_cells(self, count: int) -> None:
        super().limit_cells(self._with_entries(count, self._sequences))

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        super().copy_prefix(source, target, count)
        self.cells.share(source + self._sequences, target + self._sequences, count // self._group_size)

    def plan_removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        check_removal(sequence, begin, end)
        length = self.length(sequence)
        if begin >= length or end == begin:
            begin = length
        elif end is not None and end < length:
            raise NotSupportedError(
                f"entries after positions {begin} to {end - 1} of sequence {sequence} cannot be moved; "
                "evaluate it again"
            )
        return partial(self._truncate, sequence, begin)

    def _truncate(self, sequence: int, length: int) -> None:
        self.cells.truncate(sequence, length)
        self.cells.truncate(sequence + self._sequences, length // self._group_size)

    def save(self, sequence: int) -> Saved:
        window = super().save(sequence)
        entries = self.storage.read(self.cells.cells(sequence + self._sequences))
        both = {name: np.concatenate([array, entries[name]]) for name, array in window.arrays.items()}
        return Saved(both, window.facts)

    def plan_restore(self, sequence: int, saved: Saved) -> Callable[[], None]:
        firsts, length = saved.fact("first"), saved.length
        if len(firsts) != 1 or not 0 <= firsts[0] <= length:
            raise CacheFileError("a sequence's window is damaged")
        if length > self.cells.longest:
            raise CacheFullError(f"{length} positions were saved, and the context is {self.cells.longest}")
        if int(self._first_visible(np.array([length], np.int32))[0]) < firsts[0]:
            raise CacheFileError("positions of the window were not saved; evaluate again")
        count = length - firsts[0] + length // self._group_size
        self.storage.check_fits(saved, count)
        own, _ = self._held(sequence)
        released = int((self.cells.references[own] == 1).sum())
        self.cells.check_room(count, self.cells.free + released)
        return partial(self._restore, sequence, firsts[0], length, saved)

    def _restore(self, sequence: int, first: int, length: int, saved: Saved) -> None:
        self._truncate(sequence, 0)
        placed = self._allocate(length - first + length // self._group_size)
        self.cells.put(sequence, first, placed[: length - first])
        self.cells.put(sequence + self._sequences, 0, placed[length - first :])
        self.storage.write(placed, saved)

    # --- its description --------------------------------------------------------------------------

    def contents(self) -> list[Contents]:
        [every] = super().contents()
        both = zip(every.sequences[: self._sequences], every.sequences[self._sequences :], strict=True)
        held = [
            Held([*window.cells, *entries.cells], [*window.positions, *entries.positions])
            for window, entries in both
        ]
        return [replace(every, sequences=held)]

    def _positions(self, sequence: int) -> list[int]:
        """Return the position of each cell, which for an entry is the last of its group."""
        own = super()._positions(sequence)
        return own if sequence < self._sequences else [(each + 1) * self._group_size - 1 for each in own]

    def extents(self) -> list[Extents]:
        [counts] = self.counts()
        held = map(self._held, range(self._sequences))
        return [Extents.of(counts, self.layers, self.provided_bytes, held)]

    def _held(self, sequence: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the cells of a sequence and their positions."""
        rows = sequence, sequence + self._sequences
        positions = [position for row in rows for position in self._positions(row)]
        return np.concatenate([self.cells.cells(row) for row in rows]), np.array(positions, np.int64)

    def _max_cells(self, sequences: int, capacity: int, batch: int) -> int:
        return super()._max_cells(sequences, capacity, batch) + capacity // self._group_size + sequences

    def bookkeeping_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        cells = self._with_entries(capacity, sequences)
        return table_bytes(2 * sequences, longest) + CELL_BYTES * cells

    def is_countable(self, *, sequences: int, longest: int, capacity: int) -> bool:
        rows, width = table_shape(2 * sequences, longest)
        return max(rows * width, self._with_entries(capacity, sequences)) < 1 << 31

    def reserved_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        own = sum(self.storage.layer_bytes(self._with_entries(capacity, sequences)).values())
        return own + self.bookkeeping_bytes(sequences=sequences, longest=longest, capacity=capacity)


class CompressedLayer:
    """One layer's window, entries, and inputs of entries during a pass.

    A pass puts the rows' inputs, reads them, puts entries, and then the rows' own keys: a row that completes
    no group has put nothing but what its key overwrites.
    """

    def __init__(self, index: int, cache: CompressedCache) -> None:
        self._index, self._entries = index, cache.entries
        self._window = cache.entries.layer(index)
        self.inputs: LayerCache = cache.inputs.layer(index)

    def put(self, keys: Array, values: Array | None) -> None:
        """Store the rows' own keys, after `put_entries`."""
        self._window.put(keys, values)

    def view(self) -> KVView:
        """Return the window of each row."""
        return self._window.view()

    @property
    def places(self) -> Array:
        """The first position of the group that each row completes, int32 [rows]."""
        found: Array = self._entries.places
        return found

    @property
    def most_entries(self) -> int:
        """Maximum number of entries of a sequence."""
        return self._entries.most_entries

    def put_entries(self, entries: Array, indexer: Array | None) -> None:
        """Store the entry of each row, float32 [rows, 1, key_dim], and its key for the indexer, if any."""
        self._entries.put_entries(self._index, entries, indexer)

    def entries(self) -> KVView:
        """Return the entries visible to each row, including one that it completed."""
        return self._entries.entries(self._index)

    def indexer_entries(self) -> KVView:
        """Return the indexer's keys of the same entries."""
        return self._entries.indexer_entries(self._index)


def inputs_of(shape: KVShape, *, overlapping: bool) -> KVShape:
    """Return the geometry of the inputs of entries: values and gates, of a layer's indexer too."""
    halves = 2 * (1 + overlapping)
    keys, indexer = halves * shape.key_dim, halves * shape.indexer_dim
    return KVShape(1, keys, indexer or keys, values_in_keys=not indexer)


class CompressedCache(WrapperCache):
    """Windows and entries of layers with these `shapes`, and the inputs of the entries to come.

    If groups are `overlapping`, an entry is made of the one before, too. `keep` is that of `SlidingCache`;
    other options are those of `CausalCache`.
    """

    def __init__(
        self,
        ops: Backend,
        shapes: Mapping[int, KVShape],
        *,
        window: int,
        group_size: int,
        overlapping: bool,
        sequences: int,
        context: int,
        capacity: int | None = None,
        types: KVTypes = F16_TYPES,
        keep: int | None = None,
    ) -> None:
        if group_size < 1:
            raise ValueError(f"{group_size} positions make no group")
        keep = window if keep is None else keep
        inputs = {index: inputs_of(shape, overlapping=overlapping) for index, shape in shapes.items()}
        sizes: dict[str, Any] = {"sequences": sequences, "context": context, "capacity": capacity}
        self.entries = EntryCache(
            ops, shapes, group_size=group_size, window=window, keep=keep, types=types, spans=False, **sizes
        )
        self.inputs = GroupCache(
            ops, inputs, chunk=group_size, overlapping=overlapping, keep=keep - window + 1, **sizes
        )
        super().__init__(self.entries)
        self.caches = (self.entries, self.inputs)
        self._of = {index: CompressedLayer(index, self) for index in self.entries.layers}

    def layer(self, index: int) -> CompressedLayer:
        return self._of[index]

    def save(self, sequence: int) -> Saved:
        parts = {"entries": self.entries.save(sequence), "inputs": self.inputs.save(sequence)}
        # The arrays of both have the same names.
        arrays = {
            f"{name}.{part}": array for part, saved in parts.items() for name, array in saved.arrays.items()
        }
        facts = {
            f"{name}.{part}": fact for part, saved in parts.items() for name, fact in saved.facts.items()
        }
        return Saved(arrays, facts | {"length": [self.length(sequence)]})

    def plan_restore(self, sequence: int, saved: Saved) -> Callable[[], None]:
        def own(values: Mapping[str, Any], part: str) -> dict[str, Any]:
            end = f".{part}"
            return {name.removesuffix(end): each for name, each in values.items() if name.endswith(end)}

        parts = {"entries": self.entries, "inputs": self.inputs}
        mine = {part: Saved(own(saved.arrays, part), own(saved.facts, part)) for part in parts}
        if len({saved.length, *(each.length for each in mine.values())}) > 1:
            raise CacheFileError("one sequence cannot have several lengths; the file is damaged")
        return all_of(cache.plan_restore(sequence, mine[part]) for part, cache in parts.items())
