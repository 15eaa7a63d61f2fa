"""Storage for the keys and values of cells, and the base of the caches that keep them there.

Low cells are used first, so storage grows in steps with the number of cells in use.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from puna.kvcache.cache import Cache, KVView
from puna.kvcache.cells import CELL_BYTES, Cells, move, plan_moves, table_bytes, table_shape
from puna.kvcache.contents import CellCounts, Contents, Extents, Held
from puna.kvcache.hadamard import Hadamard
from puna.kvcache.saved import Saved
from puna.kvcache.types import KVTypes
from puna.ops import Array, Backend, Storage
from puna.ops.storage import row_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Cells provided at first; each step doubles them.
FIRST_STEP = 1024


@dataclass(frozen=True)
class KVShape:
    """The geometry of one layer's storage."""

    kv_heads: int
    key_dim: int
    value_dim: int
    values_in_keys: bool = False  # values are trailing elements of the keys, and not stored again
    indexer_dim: int = 0  # of a second key, by which cells are chosen for attention; 0: there is none

    def cell_bytes(self, types: KVTypes) -> int:
        """Return the bytes of a cell's keys and value.

        Raises `NotSupportedError` when a head does not fill whole blocks of a quantised type.
        """
        keys = row_bytes(types.keys, (self.kv_heads, self.key_dim))
        if self.indexer_dim:
            keys += row_bytes(types.keys, (1, self.indexer_dim))
        if self.values_in_keys:
            row_bytes(types.keys, (self.kv_heads, self.value_dim))  # values must begin at a block
            return keys
        return keys + row_bytes(types.values, (self.kv_heads, self.value_dim))


@dataclass(frozen=True)
class LayerStorage:
    """One layer's keys [cells, kv_heads, key_dim] and values [cells, kv_heads, value_dim].

    Values that are trailing elements of the keys are given by their number. Keys are stored transformed by
    `hadamard`, if there is one. The `indexer` holds the second keys of a layer that chooses cells by them.
    """

    keys: Storage
    values: Storage | int
    hadamard: Hadamard | None = None
    indexer: LayerStorage | None = None

    @classmethod
    def make(
        cls, ops: Backend, shape: KVShape, rows: int, types: KVTypes, hadamards: Mapping[int, Hadamard | None]
    ) -> Self:
        """Allocate `rows` cells; `hadamards` are the transforms of keys by their size.

        Raises `NotSupportedError` when heads do not fill whole blocks.
        """
        keys = ops.storage(types.keys, rows, (shape.kv_heads, shape.key_dim))
        indexer = None
        if dim := shape.indexer_dim:
            indexer = cls(ops.storage(types.keys, rows, (1, dim)), 0, hadamards.get(dim))
        if shape.values_in_keys:  # keys as they are, since they are values too
            return cls(keys, shape.value_dim, indexer=indexer)
        values = ops.storage(types.values, rows, (shape.kv_heads, shape.value_dim))
        return cls(keys, values, hadamards.get(shape.key_dim), indexer)

    def put(self, ops: Backend, cells: Array, keys: Array, values: Array | None) -> None:
        """Store keys and values in `cells`; `values` is None if they are part of the keys."""
        if (values is None) != isinstance(self.values, int):
            raise ValueError("values come with their keys, unless they are trailing elements of the keys")
        ops.store_rows(self.keys, cells, self._transformed(ops, keys))
        if values is not None and not isinstance(self.values, int):
            ops.store_rows(self.values, cells, values)

    def read_keys(self, ops: Backend, cells: NDArray[np.int32]) -> Array:
        """Return copies of the keys of `cells`, float32 [cells, kv_heads, key_dim]."""
        return self._transformed(ops, self.keys.numbers(cells))

    def write_keys(self, ops: Backend, cells: NDArray[np.int32], keys: Array) -> None:
        """Replace the keys of `cells`."""
        self.keys.put(cells, self._transformed(ops, keys))

    def _transformed(self, ops: Backend, keys: Array) -> Array:
        """Return `keys` [rows, kv_heads, key_dim] as they are stored, or stored ones as they were."""
        return keys if self.hadamard is None else self.hadamard(ops, keys)

    def view(self, cells: Array, starts: Array, counts: Array, places: Array | None = None) -> KVView:
        """Return the view of rows that see these cells."""
        return KVView(self.keys, self.values, cells, starts, counts, places, self.hadamard)

    @property
    def parts(self) -> dict[str, Storage]:
        """The storages by name: keys, values unless they are part of them, and an indexer's keys."""
        found = {"keys": self.keys}
        if not isinstance(self.values, int):
            found["values"] = self.values
        if self.indexer is not None:
            found["indexer"] = self.indexer.keys
        return found

    def close(self) -> None:
        for part in self.parts.values():
            part.close()


class KVStorage:
    """Storage of `capacity` cells in each layer of `shapes`.

    Raises `NotSupportedError` when a layer's heads do not fill whole blocks of a quantised type.
    """

    def __init__(self, ops: Backend, shapes: Mapping[int, KVShape], capacity: int, types: KVTypes) -> None:
        self._capacity = capacity
        self._cell_bytes_of = {index: shape.cell_bytes(types) for index, shape in shapes.items()}
        self._cell_bytes = sum(self._cell_bytes_of.values())
        self.provided = 0  # cells
        self.moves = 0  # of all parts (see `Storage`)
        sizes = {shape.key_dim for shape in shapes.values() if not shape.values_in_keys}
        sizes |= {shape.indexer_dim for shape in shapes.values() if shape.indexer_dim}
        hadamards = {size: Hadamard.of(ops, types.keys, size) for size in sizes}
        self.layers = {
            index: LayerStorage.make(ops, shape, capacity, types, hadamards)
            for index, shape in shapes.items()
        }

    def provide(self, cells: int) -> None:
        """Provide memory for the first `cells` cells. Raises `MemoryError`."""
        if cells <= self.provided:
            return
        provided = self._step(cells)
        try:
            for part in self._parts().values():
                part.provide(provided)
        finally:  # some may have moved
            self._count_moves()
        self.provided = provided

    def shrink(self, cells: int) -> None:
        """Free the memory behind the first `cells` cells, up to the end of the current step."""
        end, self.provided = self.provided, min(self._step(cells), self.provided)
        begin = -(-cells // FIRST_STEP) * FIRST_STEP
        for part in self._parts().values():
            part.give_back(begin, end)
            part.provide(self.provided)
        self._count_moves()

    def _count_moves(self) -> None:
        self.moves = sum(part.moves for part in self._parts().values())

    def _step(self, cells: int) -> int:
        step = FIRST_STEP
        while step < cells:
            step *= 2
        return min(step, self._capacity)

    def copy(self, sources: NDArray[np.integer[Any]], targets: NDArray[np.integer[Any]]) -> None:
        """Copy cells `sources` to `targets`, as if all were read before any is written."""
        for part in self._parts().values():
            part.copy(sources, targets)

    def read(self, cells: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
        """Return copies of `cells` by name (`3.keys`, ...)."""
        return {name: part.read(cells) for name, part in self._parts().items()}

    def check_fits(self, saved: Saved, count: int) -> None:
        """Raise `CacheFileError` unless `saved` has `count` cells of the same layers, shapes and types."""
        for name, part in self._parts().items():
            saved.check(name, part, count)

    def write(self, cells: NDArray[np.integer[Any]], saved: Saved) -> None:
        """Write to `cells` what `read` returned."""
        for name, part in self._parts().items():
            part.write(cells, saved.arrays[name])

    def _parts(self) -> dict[str, Storage]:
        """Return all storages by name: `3.keys`, ..."""
        return {
            f"{index}.{name}": part
            for index, layer in self.layers.items()
            for name, part in layer.parts.items()
        }

    def layer_bytes(self, cells: int) -> dict[int, int]:
        """Return the bytes of `cells` cells in each layer."""
        return {index: cells * each for index, each in self._cell_bytes_of.items()}

    @property
    def allocated_bytes(self) -> int:
        return self._capacity * self._cell_bytes

    @property
    def provided_bytes(self) -> int:
        return self.provided * self._cell_bytes

    def close(self) -> None:
        for layer in self.layers.values():
            layer.close()
        self.layers.clear()
        self._capacity = self.provided = 0


class CellCache(Cache):
    """A cache whose sequences are lists of cells, each cell a key and a value in every layer of `shapes`."""

    def __init__(
        self,
        ops: Backend,
        shapes: Mapping[int, KVShape],
        *,
        sequences: int,
        longest: int,
        capacity: int | None,
        types: KVTypes,
    ) -> None:
        self._ops = ops
        self._table = ops.index_buffer(*table_shape(sequences, longest))
        self._cell_table = self._table.array.reshape(-1)
        capacity = capacity or sequences * longest
        self.cells = Cells(capacity, longest, self._table.host, mirrored=self._table.mirrored)
        self.storage = KVStorage(ops, shapes, self.cells.capacity, types)

    @property
    def layers(self) -> Iterable[int]:
        return self.storage.layers.keys()

    def _allocate(self, count: int) -> NDArray[np.int32]:
        """Return `count` writable cells, ascending.

        Raises, changing nothing, `CacheFullError` when fewer are free, and `MemoryError`.
        """
        placed = self.cells.allocate(count)
        if count:
            try:
                self.storage.provide(int(placed[-1]) + 1)
            except BaseException:
                self.cells.release(placed)
                raise
        return placed

    def _upload_table(self) -> None:
        """Make the current lists of cells visible to tensor operations."""
        if self._table.mirrored:
            self._table.upload(self.cells.take_changes())

    def room(self, wanted: int) -> int:
        return max(min(wanted, self.cells.free), 0)

    def limit_cells(self, count: int) -> None:
        self.cells.limit = min(count, self.cells.capacity)

    def _check_room_instead(self, sequence: int, count: int) -> None:
        """Raise `CacheFullError` unless `count` cells are free once `sequence` has released its own."""
        held = self.cells.references[self.cells.cells(sequence)]
        self.cells.check_room(count, self.cells.free + int((held == 1).sum()))

    def contents(self) -> list[Contents]:
        cells = self.cells
        sequences = [Held(cells.cells(s).tolist(), self._positions(s)) for s in range(len(cells.length))]
        return [Contents(self.kind, list(self.layers), cells.limit, self.provided_bytes, sequences)]

    def extents(self) -> list[Extents]:
        cells, [counts] = self.cells, self.counts()
        held = (
            (cells.cells(sequence), np.arange(cells.first[sequence], cells.length[sequence]))
            for sequence in range(len(cells.length))
        )
        return [Extents.of(counts, self.layers, self.provided_bytes, held)]

    def counts(self) -> list[CellCounts]:
        cells = self.cells
        shared = int(np.count_nonzero(cells.references > 1))
        return [CellCounts(self.kind, cells.limit, cells.limit - cells.free, shared)]

    def _positions(self, sequence: int) -> list[int]:
        """Return the position of each cell of `sequence`."""
        return list(range(int(self.cells.first[sequence]), int(self.cells.length[sequence])))

    def layer_bytes(self, *, sequences: int, capacity: int, batch: int) -> dict[int, int]:
        return self.storage.layer_bytes(self._max_cells(sequences, capacity, batch))

    def bookkeeping_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        return table_bytes(sequences, longest) + CELL_BYTES * capacity

    def is_countable(self, *, sequences: int, longest: int, capacity: int) -> bool:
        return max(math.prod(table_shape(sequences, longest)), capacity) < 1 << 31

    def reserved_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        own = sum(self.storage.layer_bytes(capacity).values())
        return own + self.bookkeeping_bytes(sequences=sequences, longest=longest, capacity=capacity)

    def _max_cells(self, sequences: int, capacity: int, batch: int) -> int:
        """Return how many of `capacity` cells can be in use at once."""
        return capacity

    @property
    def allocated_bytes(self) -> int:
        return self.storage.allocated_bytes

    @property
    def provided_bytes(self) -> int:
        return self.storage.provided_bytes

    def compact(self, limit: int = 256) -> bool:
        moves = plan_moves(self.cells, limit)
        if moves is None:
            self.storage.shrink(self.cells.highest_used)
            return False
        self.storage.copy(*moves)
        move(self.cells, *moves)
        return True

    def close(self) -> None:
        self.storage.close()
