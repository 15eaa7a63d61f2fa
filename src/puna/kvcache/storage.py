"""Where the keys and values of a cache's cells lie.

Cells are used from the lowest up, so storage grows in steps with the cells in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from puna.kvcache.saved import Saved
from puna.kvcache.types import KVTypes
from puna.ops import Backend, Storage
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

    def cell_bytes(self, types: KVTypes) -> int:
        """Bytes of one position's key and value. Raises `NotSupportedError` when a head fills no blocks."""
        keys = row_bytes(types.keys, (self.kv_heads, self.key_dim))
        return keys + row_bytes(types.values, (self.kv_heads, self.value_dim))


@dataclass(frozen=True)
class Stored:
    """One layer's keys [cells, kv_heads, key_dim] and values [cells, kv_heads, value_dim]."""

    keys: Storage
    values: Storage

    def close(self) -> None:
        self.keys.close()
        self.values.close()


class KVStorage:
    """`capacity` cells of each layer of `shapes`. Raises `NotSupportedError` when heads fill no blocks."""

    def __init__(self, ops: Backend, shapes: Mapping[int, KVShape], capacity: int, types: KVTypes) -> None:
        self._capacity = capacity
        self._cell_bytes_of = {index: shape.cell_bytes(types) for index, shape in shapes.items()}
        self._cell_bytes = sum(self._cell_bytes_of.values())
        self.provided = 0  # cells
        self.layers = {
            index: Stored(
                ops.storage(types.keys, capacity, (shape.kv_heads, shape.key_dim)),
                ops.storage(types.values, capacity, (shape.kv_heads, shape.value_dim)),
            )
            for index, shape in shapes.items()
        }

    def provide(self, cells: int) -> None:
        """Cells below `cells` will be used."""
        if cells <= self.provided:
            return
        self.provided = self._step(cells)
        for part in self._parts():
            part.provide(self.provided)

    def shrink(self, cells: int) -> None:
        """Nothing is kept in cells from `cells` on; a few stay provided for what comes next."""
        end, self.provided = self.provided, min(self._step(cells), self.provided)
        begin = -(-cells // FIRST_STEP) * FIRST_STEP
        for part in self._parts():
            part.give_back(begin, end)

    def _step(self, cells: int) -> int:
        step = FIRST_STEP
        while step < cells:
            step *= 2
        return min(step, self._capacity)

    def copy(self, sources: NDArray[np.integer[Any]], targets: NDArray[np.integer[Any]]) -> None:
        """Cells `targets` become what cells `sources` were before any of them is written."""
        for part in self._parts():
            part.copy(sources, targets)

    def read(self, cells: NDArray[np.integer[Any]]) -> dict[str, NDArray[Any]]:
        """Copies of `cells`, by layer and half."""
        found = {}
        for index, layer in self.layers.items():
            found[f"{index}.keys"], found[f"{index}.values"] = (
                layer.keys.read(cells),
                layer.values.read(cells),
            )
        return found

    def check_fits(self, saved: Saved, count: int) -> None:
        """Raise `CacheFileError` unless `saved` holds `count` cells that `read` could have read here."""
        for index, layer in self.layers.items():
            saved.check(f"{index}.keys", layer.keys, count)
            saved.check(f"{index}.values", layer.values, count)

    def write(self, cells: NDArray[np.integer[Any]], saved: Saved) -> None:
        """`cells` become what was read."""
        for index, layer in self.layers.items():
            layer.keys.write(cells, saved.arrays[f"{index}.keys"])
            layer.values.write(cells, saved.arrays[f"{index}.values"])

    def _parts(self) -> Iterable[Storage]:
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
        for layer in self.layers.values():
            layer.close()
        self.layers.clear()
        self._capacity = self.provided = 0
