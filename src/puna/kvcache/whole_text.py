"""The cache of encoders, which keeps nothing: keys and values exist only during the pass over a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from puna.batch import Batch
from puna.errors import NotSupportedError
from puna.gguf import GGMLType
from puna.kvcache.cache import Cache, KVView, check_removal
from puna.kvcache.contents import CellCounts
from puna.kvcache.storage import KVShape, LayerStorage
from puna.kvcache.types import KVTypes
from puna.ops import Array, Backend

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TYPES = KVTypes(GGMLType.F32, GGMLType.F32)
#: Lists of cells begin at multiples of this (see `ops.attention`).
_ALIGNED = 512


class WholeTextCache(Cache):
    """A cache in which every row of a batch sees all rows of its sequence, and nothing outlives the pass.

    With a `reach`, a row sees that many rows before itself and as many after. A text must be evaluated in one
    pass and can never be resumed, so `resume_point` is 0.
    """

    def __init__(
        self, ops: Backend, shapes: Mapping[int, KVShape], *, sequences: int, reach: int | None = None
    ) -> None:
        self.ops = ops
        self._reach = reach
        self._layers = {index: _Layer(self, shape) for index, shape in shapes.items()}
        self._lengths = [0] * sequences
        self._before: dict[int, int] = {}
        self._stored: dict[KVShape, LayerStorage] = {}
        self._room = 0  # rows the storage holds
        self.batch_cells = self.row_cells = ops.array(np.empty(0, np.int32))
        self.row_starts = self.row_counts = self.row_places = self.batch_cells

    @property
    def layers(self) -> Iterable[int]:
        return self._layers.keys()

    @property
    def generation(self) -> None:
        return None  # the visible rows depend on the length of the text

    @property
    def max_drafts(self) -> int:
        return 0

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        sequences, positions = batch.sequences, batch.positions
        begins = np.flatnonzero(np.diff(sequences, prepend=-1))  # first row of each sequence
        if positions[begins].any():
            raise NotSupportedError(
                "this model reads a text whole, in one pass, and cannot continue where another pass ended"
            )
        return partial(self._begin, sequences, begins)

    def _begin(self, sequences: NDArray[np.int32], begins: NDArray[np.integer[Any]]) -> None:
        rows = len(sequences)
        lengths = np.diff(begins, append=rows)
        present = sequences[begins].tolist()
        self._make_room(rows)
        self._before = {sequence: self._lengths[sequence] for sequence in present}
        for sequence, length in zip(present, lengths.tolist(), strict=True):
            self._lengths[sequence] = length
        self.batch_cells = self.ops.array(np.arange(rows, dtype=np.int32))
        # Results are bit-identical wherever a list begins, as long as that is a multiple of this.
        starts = np.cumsum([0, *(-(-lengths // _ALIGNED) * _ALIGNED)])
        cells = np.zeros(starts[-1], np.int32)
        for start, begin, length in zip(starts[:-1].tolist(), begins.tolist(), lengths.tolist(), strict=True):
            cells[start : start + length] = range(begin, begin + length)
        self.row_cells = self.ops.array(cells)
        ends, lists = np.repeat(lengths, lengths), np.repeat(starts[:-1], lengths)
        first, last = np.zeros_like(ends), ends
        here = np.arange(rows) - np.repeat(begins, lengths)
        if self._reach is not None:
            first, last = np.maximum(here - self._reach, 0), np.minimum(here + self._reach + 1, ends)
        self.row_places = self.ops.array((lists + here).astype(np.int32))
        self.row_starts = self.ops.array((lists + first).astype(np.int32))
        self.row_counts = self.ops.array((last - first).astype(np.int32))

    def _make_room(self, rows: int) -> None:
        """Allocate storage for the keys and values of a batch, which all layers of a shape use in turn."""
        if rows <= self._room:
            return
        for stored in self._stored.values():
            stored.close()
        room, self._room = 1 << (rows - 1).bit_length(), 0
        for shape in {layer.shape for layer in self._layers.values()}:
            stored = LayerStorage.make(self.ops, shape, room, _TYPES, {})
            for part in stored.parts.values():
                part.provide(room)
            self._stored[shape] = stored
        self._room = room

    def stored(self, shape: KVShape) -> LayerStorage:
        """Return the storage of a layer of `shape` while it attends."""
        return self._stored[shape]

    def undo_forward(self) -> None:
        for sequence, length in self._before.items():
            self._lengths[sequence] = length
        self._before = {}

    def layer(self, index: int) -> _Layer:
        return self._layers[index]

    def room(self, wanted: int) -> int:
        return wanted

    def length(self, sequence: int) -> int:
        return self._lengths[sequence]

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        self._lengths[target] = min(count, self._lengths[source])

    def plan_removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        check_removal(sequence, begin, end)
        length = self._lengths[sequence]
        if 0 < begin < length:
            raise NotSupportedError("this model reads a text whole: it cannot forget a part of one")
        return partial(self._forget, sequence) if begin == 0 else _nothing

    def _forget(self, sequence: int) -> None:
        self._lengths[sequence] = 0

    def resume_point(self, sequence: int, position: int) -> int:
        return 0

    def counts(self) -> list[CellCounts]:
        return []

    @property
    def allocated_bytes(self) -> int:
        return 0

    def layer_bytes(self, *, sequences: int, capacity: int, batch: int) -> dict[int, int]:
        return dict.fromkeys(self._layers, 0)

    @property
    def provided_bytes(self) -> int:
        return 0

    def close(self) -> None:
        for stored in self._stored.values():
            stored.close()
        self._layers.clear()
        self._stored.clear()


class _Layer:
    """One layer's keys and values during a pass."""

    def __init__(self, cache: WholeTextCache, shape: KVShape) -> None:
        self._cache = cache
        self.shape = shape
        self._seen: KVView | None = None

    def put(self, keys: Array, values: Array | None) -> None:
        """Hold the batch's keys [rows, kv_heads, key_dim] and values until the next layer puts its own."""
        cache = self._cache
        stored = cache.stored(self.shape)
        stored.put(cache.ops, cache.batch_cells, keys, values)
        self._seen = stored.view(cache.row_cells, cache.row_starts, cache.row_counts, cache.row_places)

    def view(self) -> KVView:
        seen, self._seen = self._seen, None
        if seen is None:
            raise ValueError("this layer has no keys and values of this pass; put comes before view")
        return seen


def _nothing() -> None:
    pass
