"""Where keys and values lie: address space for all cells, memory for those that have been used.

A cache of a long context is reserved whole and stays where it is, so that a recorded pass stays valid. The
system provides memory when a page is first written, and takes it back when told that nothing in it is needed.
Cells are used from the lowest up, so storage grows in steps with the cells in use.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from puna.kvcache.cache import Saved
from puna.kvcache.types import KVTypes
from puna.ops import kv_row_bytes, kv_storage

#: Cells storage begins with; a step doubles it.
FIRST_STEP = 1024
#: Bytes of a region from which on large pages are asked for: faster to look up, but provided 2 MiB at a time.
_LARGE = 4 << 20
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000 if hasattr(mmap, "MAP_ANONYMOUS") else 0)


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


class Region:
    """`rows` rows of `row_bytes` bytes, zero until written; the address never changes."""

    def __init__(self, rows: int, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        self._map = mmap.mmap(-1, max(rows * row_bytes, 1), flags=flags)
        self.bytes: Tensor = torch.frombuffer(self._map, dtype=torch.uint8)  # keeps the mapping alive

    def provide(self, rows: int) -> None:
        """The first `rows` rows will be used."""
        size = rows * self._row_bytes
        if size >= _LARGE and hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE, 0, min(size, len(self._map)))

    def give_back(self, begin: int, end: int) -> None:
        """Rows [begin, end) are zero from now on; their whole pages go back to the system."""
        first = -(-begin * self._row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        last = min(end * self._row_bytes, len(self._map))
        if first < last:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


@dataclass(frozen=True)
class Stored:
    """One layer's keys [cells, kv_heads, key_dim] and values [cells, kv_heads, value_dim] (`ops/kv.py`)."""

    keys: Tensor
    values: Tensor


class KVStorage:
    """`capacity` cells of each layer of `shapes`. Raises `NotSupportedError` when heads fill no blocks."""

    def __init__(self, shapes: Mapping[int, KVShape], capacity: int, types: KVTypes) -> None:
        self._capacity = capacity
        self._regions: list[Region] = []
        self._cell_bytes_of = {index: shape.cell_bytes(types) for index, shape in shapes.items()}
        self._cell_bytes = sum(self._cell_bytes_of.values())
        self.provided = 0  # cells
        self.layers: dict[int, Stored] = {}
        for index, shape in shapes.items():
            halves = []
            for kind, dim in ((types.keys, shape.key_dim), (types.values, shape.value_dim)):
                row_bytes = shape.kv_heads * kv_row_bytes(kind, dim)
                region = Region(capacity, row_bytes)
                halves.append(kv_storage(kind, region.bytes[: capacity * row_bytes], shape.kv_heads, dim))
                self._regions.append(region)
            self.layers[index] = Stored(*halves)

    def provide(self, cells: int) -> None:
        """Cells below `cells` will be used."""
        if cells <= self.provided:
            return
        self.provided = self._step(cells)
        for region in self._regions:
            region.provide(self.provided)

    def shrink(self, cells: int) -> None:
        """Nothing is kept in cells from `cells` on; a few stay provided for what comes next."""
        end, self.provided = self.provided, min(self._step(cells), self.provided)
        begin = -(-cells // FIRST_STEP) * FIRST_STEP
        for region in self._regions:
            region.give_back(begin, end)

    def _step(self, cells: int) -> int:
        step = FIRST_STEP
        while step < cells:
            step *= 2
        return min(step, self._capacity)

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """Cells `targets` (int64) become what cells `sources` were before any of them is written."""
        for tensor in self._tensors():
            tensor[targets] = tensor[sources]

    def read(self, cells: Tensor) -> dict[str, Tensor]:
        """Copies of `cells` (int64) by layer and half."""
        found = {}
        for index, layer in self.layers.items():
            found[f"{index}.keys"], found[f"{index}.values"] = layer.keys[cells], layer.values[cells]
        return found

    def check_fits(self, saved: Saved, count: int) -> None:
        """Raise `CacheFileError` unless `saved` holds `count` cells that `read` could have read here."""
        for index, layer in self.layers.items():
            saved.rows(f"{index}.keys", layer.keys, count)
            saved.rows(f"{index}.values", layer.values, count)

    def write(self, cells: Tensor, saved: Saved) -> None:
        """`cells` (int64) become what was read."""
        for index, layer in self.layers.items():
            layer.keys[cells] = saved.tensors[f"{index}.keys"]
            layer.values[cells] = saved.tensors[f"{index}.values"]

    def _tensors(self) -> Iterable[Tensor]:
        for layer in self.layers.values():
            yield from (layer.keys, layer.values)

    def layer_bytes(self, cells: int) -> dict[int, int]:
        """What `cells` cells of each layer take."""
        return {index: cells * each for index, each in self._cell_bytes_of.items()}

    @property
    def allocated_bytes(self) -> int:
        return self._capacity * self._cell_bytes

    @property
    def provided_bytes(self) -> int:
        return self.provided * self._cell_bytes

    def close(self) -> None:
        """Memory goes back as soon as nobody holds a layer's tensors any more."""
        self.layers.clear()
        self._regions.clear()
        self._capacity = self.provided = 0
