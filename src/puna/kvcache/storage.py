"""Where the keys and values of a cache's cells lie.

Cells are used from the lowest up, so storage grows in steps with the cells in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from puna.kvcache.saved import Saved
from puna.kvcache.types import KVTypes
from puna.ops import Array, Backend, Storage
from puna.ops.storage import row_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Cells storage begins with; a step doubles it.
FIRST_STEP = 1024


@dataclass(frozen=True)
class KVShape:
    """The geometry of one layer's storage."""

    kv_heads: int
    key_dim: int
    value_dim: int
    values_in_keys: bool = False  # values are the last numbers of keys, and stored as these alone

    def cell_bytes(self, types: KVTypes) -> int:
        """Bytes of one position's key and value. Raises `NotSupportedError` when a head fills no blocks."""
        keys = row_bytes(types.keys, (self.kv_heads, self.key_dim))
        if self.values_in_keys:
            row_bytes(types.keys, (self.kv_heads, self.value_dim))  # they begin where a block does
            return keys
        return keys + row_bytes(types.values, (self.kv_heads, self.value_dim))


@dataclass(frozen=True)
class LayerStorage:
    """One layer's keys [cells, kv_heads, key_dim] and values [cells, kv_heads, value_dim].

    Of values that are the last numbers of keys it says how many these are.
    """

    keys: Storage
    values: Storage | int

    @classmethod
    def make(cls, ops: Backend, shape: KVShape, rows: int, types: KVTypes) -> Self:
        """Raises `NotSupportedError` when heads fill no blocks."""
        keys = ops.storage(types.keys, rows, (shape.kv_heads, shape.key_dim))
        if shape.values_in_keys:
            return cls(keys, shape.value_dim)
        return cls(keys, ops.storage(types.values, rows, (shape.kv_heads, shape.value_dim)))

    def put(self, ops: Backend, cells: Array, keys: Array, values: Array | None) -> None:
        """Cells `cells` become these; `values` are None where they are in the keys."""
        if (values is None) != isinstance(self.values, int):
            raise ValueError("values come with their keys, unless they are the last numbers of these")
        ops.store_rows(self.keys, cells, keys)
        if values is not None and not isinstance(self.values, int):
            ops.store_rows(self.values, cells, values)

    @property
    def parts(self) -> dict[str, Storage]:
        """What is stored, by name."""
        if isinstance(self.values, int):
            return {"keys": self.keys}
        return {"keys": self.keys, "values": self.values}

    def close(self) -> None:
        for part in self.parts.values():
            part.close()


class KVStorage:
    """`capacity` cells of each layer of `shapes`. Raises `NotSupportedError` when heads fill no blocks."""

    def __init__(self, ops: Backend, shapes: Mapping[int, KVShape], capacity: int, types: KVTypes) -> None:
        self._capacity = capacity
        self._cell_bytes_of = {index: shape.cell_bytes(types) for index, shape in shapes.items()}
        self._cell_bytes = sum(self._cell_bytes_of.values())
        self.provided = 0  # cells
        self.layers = {
            index: LayerStorage.make(ops, shape, capacity, types) for index, shape in shapes.items()
        }

    def provide(self, cells: int) -> None:
        """Cells below `cells` will be used."""
        if cells <= self.provided:
            return
        self.provided = self._step(cells)
        for part in self._parts().values():
            part.provide(self.provided)

    def shrink(self, cells: int) -> None:
        """Nothing is kept in cells from `cells` on; a few stay provided for what comes next."""
        end, self.provided = self.provided, min(self._step(cells), self.provided)
        begin = -(-cells // FIRST_STEP) * FIRST_STEP
        for part in self._parts().values():
            part.give_back(begin, end)

    def _step(self, cells: int) -> int:
        step = FIRST_STEP
        while step < cells:
            step *= 2
        return min(step, self._capacity)

    def copy(self, sources: NDArray[np.integer[Any]], targets: NDArray[np.integer[Any]]) -> None:
        """Cells `targets` become what cells `sources` were before any of them is written."""
        for part in self._parts().values():
            part.copy(sources, targets)

    def read(self, cells: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
        """Copies of `cells`, by layer and half."""
        return {name: part.read(cells) for name, part in self._parts().items()}

    def check_fits(self, saved: Saved, count: int) -> None:
        """Raise `CacheFileError` unless `saved` holds `count` cells that `read` could have read here."""
        for name, part in self._parts().items():
            saved.check(name, part, count)

    def write(self, cells: NDArray[np.integer[Any]], saved: Saved) -> None:
        """`cells` become what was read."""
        for name, part in self._parts().items():
            part.write(cells, saved.arrays[name])

    def _parts(self) -> dict[str, Storage]:
        """All that is stored: `3.keys`, ..."""
        return {
            f"{index}.{name}": part
            for index, layer in self.layers.items()
            for name, part in layer.parts.items()
        }

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
        for layer in self.layers.values():
            layer.close()
        self.layers.clear()
        self._capacity = self.provided = 0
