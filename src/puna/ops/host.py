"""Arrays, indices and storage of backends that compute with numpy arrays in this process's memory."""

from __future__ import annotations

import copy
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna.gguf import GGMLType
from puna.ops import quantized
from puna.ops.storage import Storage, stored_form
from puna.system import pages

#: Bytes from which a region uses large pages.
_LARGE = 4 << 20


class HostBuffer:
    """Indices or numbers that operations read directly, without a copy."""

    mirrored = False

    def __init__(
        self,
        shape: Sequence[int],
        kind: type[np.int32 | np.float32] = np.int32,
        array_type: type[NDArray[Any]] = np.ndarray,
    ) -> None:
        # np.zeros is backed lazily: unused parts cost address space, not memory.
        self.host: NDArray[Any] = np.zeros(shape, kind)
        self.array = self.host.view(array_type)

    def upload(self, ranges: Sequence[tuple[int, int]] | None = None) -> None:
        pass


class HostStorage(Storage):
    """Address space for all rows, and memory for those that were written.

    The system provides memory when a page is first written, and takes it back when told that a page is no
    longer needed.
    """

    def __init__(self, kind: GGMLType, rows: int, row_shape: tuple[int, ...]) -> None:
        super().__init__(kind, rows, row_shape)
        self._map = mmap.mmap(-1, max(rows * self.row_bytes, 1), flags=pages.UNRESERVED)
        dtype, form = stored_form(kind, row_shape)
        # The array keeps the mapping alive.
        self.stored: NDArray[Any] = np.frombuffer(self._map, dtype, rows * self.row_bytes // dtype.itemsize)
        self.stored = self.stored.reshape(rows, *form)

    def provide(self, rows: int) -> None:
        size = rows * self.row_bytes
        if size >= _LARGE:
            pages.use_large_pages(self._map, min(size, len(self._map)))

    def give_back(self, begin: int, end: int) -> None:
        first = -(-begin * self.row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        last = min(end * self.row_bytes, len(self._map))
        if first < last:
            pages.give_back(self._map, first, last - first)

    def copy(self, sources: NDArray[np.integer], targets: NDArray[np.integer]) -> None:
        self.stored[targets] = self.stored[sources]

    def read(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        found: NDArray[Any] = self.stored[rows]
        return found

    def write(self, rows: NDArray[np.integer], stored: NDArray[Any]) -> None:
        self.stored[rows] = stored

    def numbers(self, rows: NDArray[np.integer]) -> NDArray[np.float32]:
        return quantized.unpack(self.stored[rows], self.kind)

    def put(self, rows: NDArray[np.integer], numbers: NDArray[Any]) -> None:  # type: ignore[override]
        self.stored[rows] = quantized.pack(numbers, self.kind)

    def by_head(self) -> HostStorage:
        rows, heads, dim = self.shape
        found = copy.copy(self)
        found.shape, found.row_bytes = (rows * heads, 1, dim), self.row_bytes // heads
        found.stored = self.stored.reshape(rows * heads, 1, *self.stored.shape[2:])
        return found

    def close(self) -> None:
        del self.stored, self._map
