"""Base of the caches of keys and values: cells, and their storage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from puna.kvcache.cache import Cache
from puna.kvcache.cells import CELL_BYTES, Cells, move, plan_moves, table_bytes, table_shape
from puna.kvcache.contents import CellCounts, Contents, Extents, Held, runs_of
from puna.kvcache.storage import KVShape, KVStorage
from puna.kvcache.types import KVTypes
from puna.ops import Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
        """Return `count` writable cells, ascending. Raises `CacheFullError` when fewer are free."""
        placed = self.cells.allocate(count)
        if count:
            self.storage.provide(int(placed[-1]) + 1)
        return placed

    def _upload_table(self) -> None:
        """Make the current lists of cells visible to tensor operations."""
        if self._table.mirrored:
            for begin, end in self.cells.take_changes():
                self._table.upload(begin, end)

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
        runs = [
            run
            for s in range(len(cells.length))
            for run in runs_of(s, cells.cells(s), np.arange(cells.first[s], cells.length[s]))
        ]
        return [
            Extents(
                self.kind,
                list(self.layers),
                counts.capacity,
                self.provided_bytes,
                counts.used,
                counts.shared,
                runs,
            )
        ]

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
