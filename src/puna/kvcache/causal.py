"""The cache of plain causal attention: every position sees itself and all earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from puna import ops
from puna.errors import CacheFullError, NotSupportedError
from puna.kvcache.cache import KVView, Shift
from puna.kvcache.cells import Cells
from puna.kvcache.types import HALVES, KVTypes
from puna.ops import kv_pack, kv_row_bytes, kv_unpack, kv_zeros

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.model.input import Batch


@dataclass(frozen=True)
class KVShape:
    """The geometry of one layer's storage."""

    kv_heads: int
    key_dim: int
    value_dim: int

    def cell_bytes(self, types: KVTypes) -> int:
        """Bytes of one position's key and value. Raises `NotSupportedError` when a head fills no blocks."""
        keys, values = kv_row_bytes(types.keys, self.key_dim), kv_row_bytes(types.values, self.value_dim)
        return self.kv_heads * (keys + values)


class CausalCache:
    """Keys and values of `sequences` sequences of at most `context` positions each.

    `capacity` cells (default `sequences * context`) are shared by all. Storage is of `types` and takes
    memory only as cells come into use. Raises `NotSupportedError` when a layer's heads do not fill the
    blocks of a quantised type. `shift` re-rotates keys; without it the middle of a
    sequence cannot be removed.
    """

    def __init__(
        self,
        shapes: list[KVShape],
        *,
        sequences: int,
        context: int,
        capacity: int | None = None,
        types: KVTypes = HALVES,
        shift: Shift | None = None,
    ) -> None:
        self.cells = Cells(capacity or sequences * context, sequences, context)
        self._cell_table = torch.from_numpy(self.cells.table.reshape(-1))
        self._shift = shift
        self._types = types
        self._layers = [_Layer(self, shape, types) for shape in shapes]
        self._bytes = self.cells.capacity * sum(shape.cell_bytes(types) for shape in shapes)
        self.generation = 0
        self._make_row_buffers(64)
        self._lengths_before = self.cells.length.copy()  # before the last start_forward

    def _make_row_buffers(self, rows: int) -> None:
        """Buffers for what `start_forward` says of each row; they stay where they are, see `generation`."""
        self.generation += 1
        self._row_buffers = np.zeros((3, rows), dtype=np.int32)
        self._show_rows(0)

    def _show_rows(self, rows: int) -> None:
        tensors = torch.from_numpy(self._row_buffers)[:, :rows]
        self._batch_cells, self._starts, self._counts = tensors.unbind()

    def start_forward(self, batch: Batch) -> None:
        sequences, positions = batch.sequences, batch.positions.numpy()
        cells, rows = self.cells, len(sequences)
        self._check_continues(sequences, positions)
        placed = cells.allocate(rows)
        self._lengths_before = cells.length.copy()
        cells.append(sequences, positions, placed)
        if rows > self._row_buffers.shape[1]:
            self._make_row_buffers(2 * rows)
        if rows != len(self._batch_cells):
            self._show_rows(rows)
        buffers = self._row_buffers
        buffers[0, :rows] = placed
        np.multiply(sequences, cells.table.shape[1], out=buffers[1, :rows])
        np.add(positions, 1, out=buffers[2, :rows])

    def _check_continues(self, sequences: NDArray[np.int32], positions: NDArray[np.int32]) -> None:
        cells = self.cells
        expected = cells.length[sequences]
        if len(sequences) > 1:
            same = sequences[1:] == sequences[:-1]
            expected[1:][same] = positions[:-1][same] + 1
        wrong = positions != expected
        if wrong.any():
            row = int(np.argmax(wrong))
            sequence = int(sequences[row])
            raise ValueError(
                f"sequence {sequence} continues at position {cells.length[sequence]} without gaps, "
                f"row {row} of the batch has position {positions[row]}"
            )
        if positions.max() >= cells.longest:
            sequence = int(sequences[np.argmax(positions)])
            raise CacheFullError(
                f"sequence {sequence} holds {cells.length[sequence]} positions, "
                f"{np.count_nonzero(sequences == sequence)} more would exceed the context of {cells.longest}"
            )

    def undo_forward(self) -> None:
        for sequence in np.flatnonzero(self.cells.length > self._lengths_before).tolist():
            self.cells.truncate(sequence, int(self._lengths_before[sequence]))

    def layer(self, index: int) -> _Layer:
        return self._layers[index]

    def length(self, sequence: int) -> int:
        return int(self.cells.length[sequence])

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        self.cells.share(source, target, count)

    def remove(self, sequence: int, begin: int, end: int | None = None) -> None:
        length = int(self.cells.length[sequence])
        if begin < 0 or (end is not None and end < begin):
            raise ValueError(f"cannot remove positions {begin} to {end} of sequence {sequence}")
        if begin >= length or end == begin:
            return
        if end is None or end >= length:
            self.cells.truncate(sequence, begin)
            return
        if self._shift is None:
            raise NotSupportedError("this model's keys cannot be moved to other positions")
        self._own(sequence, end, length)
        self.cells.cut(sequence, begin, end)
        moved = torch.from_numpy(self.cells.cells(sequence)[begin:].astype(np.int64))
        for index, layer in enumerate(self._layers):
            keys = kv_unpack(layer.keys[moved])
            self._shift(index, keys, begin - end)
            layer.keys[moved] = kv_pack(keys, self._types.keys)

    def _own(self, sequence: int, begin: int, end: int) -> None:
        """Give `sequence` copies of those of its entries [begin, end) that other sequences share."""
        row = self.cells.table[sequence, begin:end]
        shared = np.flatnonzero(self.cells.references[row] > 1) + begin
        if not len(shared):
            return
        fresh = self.cells.allocate(len(shared))
        source = torch.from_numpy(self.cells.table[sequence, shared].astype(np.int64))
        target = torch.from_numpy(fresh.astype(np.int64))
        for layer in self._layers:
            layer.keys[target] = layer.keys[source]
            layer.values[target] = layer.values[source]
        self.cells.replace(sequence, shared, fresh)

    def can_resume(self, sequence: int, position: int) -> bool:
        return bool(0 <= position <= self.cells.length[sequence])

    @property
    def allocated_bytes(self) -> int:
        return self._bytes

    def close(self) -> None:
        self._layers.clear()
        self._bytes = 0


class _Layer:
    """Storage of one layer."""

    def __init__(self, cache: CausalCache, shape: KVShape, types: KVTypes) -> None:
        self._cache = cache
        self.keys = kv_zeros(types.keys, cache.cells.capacity, shape.kv_heads, shape.key_dim)
        self.values = kv_zeros(types.values, cache.cells.capacity, shape.kv_heads, shape.value_dim)

    def put(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        cells = self._cache._batch_cells
        rows = len(cells)
        if len(keys) != rows or len(values) != rows:
            raise ValueError(f"the batch has {rows} rows, got {len(keys)} keys and {len(values)} values")
        ops.store_rows(self.keys, cells, keys)
        ops.store_rows(self.values, cells, values)

    def view(self) -> KVView:
        cache = self._cache
        return KVView(self.keys, self.values, cache._cell_table, cache._starts, cache._counts)
