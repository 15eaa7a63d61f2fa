"""A weight matrix: the file's bytes, and the backend's packed form."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

from puna.gguf import GGMLType, dequantize
from puna.system import pages

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Weight:
    """A matrix [out, in] in one of GGUF's block types.

    `data` are the file's bytes, usually a view of its memory map, until a backend has packed the matrix
    (`Backend.pack`). A table of embeddings that is also the output head is simply two weights over the same
    bytes.

    A weight that is `on_host` stays in the machine's memory, and the processor computes with it, also within
    a model on another device (`Backend.host`).
    """

    def __init__(
        self,
        name: str,
        data: NDArray[Any],
        type: GGMLType,
        shape: tuple[int, ...],
        *,
        on_host: bool = False,
    ) -> None:
        if len(shape) != 2:
            raise ValueError(f"weight '{name}': expected a shape [out, in], got {list(shape)}")
        if shape[1] % type.block_size:
            raise ValueError(
                f"weight '{name}': rows of {shape[1]} values do not fill {type.name} blocks "
                f"of {type.block_size}"
            )
        expected = type.nbytes(shape[0] * shape[1])
        if data.nbytes != expected:
            raise ValueError(
                f"weight '{name}': {data.nbytes} bytes for shape {list(shape)}, expected {expected}"
            )
        self.name = name
        self.type = type
        self.shape = shape
        self.on_host = on_host
        self.nbytes = data.nbytes
        self.data: NDArray[np.uint8] | None = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.packed: Any = None  # owned by the backend

    @classmethod
    def from_values(cls, name: str, values: NDArray[Any]) -> Weight:
        """Return a float32 weight with `values` [out, in]."""
        numbers = np.ascontiguousarray(values, np.float32)
        return cls(name, numbers.reshape(-1).view(np.uint8), GGMLType.F32, numbers.shape)

    def values(self) -> NDArray[np.float32]:
        """Return all values [out, in]. Raises `ValueError` if the file's bytes are gone."""
        return dequantize(self.bytes().reshape(-1), self.type).reshape(self.shape)

    def rows(self, indices: NDArray[np.integer]) -> NDArray[np.float32]:
        """Return some rows, [len(indices), in]. Raises `IndexError` for rows that do not exist."""
        self.check_rows(indices)
        return dequantize(self.bytes()[indices].reshape(-1), self.type).reshape(-1, self.shape[1])

    def bytes(self) -> NDArray[np.uint8]:
        """Return the bytes of each row [out, bytes]. Raises `ValueError` if they are gone."""
        if self.data is None:
            raise ValueError(f"weight '{self.name}' was packed, and its bytes are gone")
        return self.data.reshape(self.shape[0], self.nbytes // max(self.shape[0], 1))

    def row_range(self, begin: int, end: int) -> Weight:
        """Return the rows [begin, end), over the same bytes of the file."""
        data, shape = self.bytes()[begin:end].reshape(-1), (end - begin, self.shape[1])
        return Weight(self.name, data, self.type, shape, on_host=self.on_host)

    def column_range(self, begin: int, end: int) -> Weight:
        """Return the columns [begin, end), copying the file's bytes.

        Raises `ValueError` unless both are at the edge of a block.
        """
        block = self.type.block_size
        if begin % block or end % block:
            raise ValueError(
                f"weight '{self.name}': columns {begin} to {end} are no {self.type.name} blocks of {block}"
            )
        data = self.bytes()[:, self.type.nbytes(begin) : self.type.nbytes(end)]
        return Weight(self.name, data, self.type, (self.shape[0], end - begin), on_host=self.on_host)

    def chosen_rows(self, indices: NDArray[np.integer]) -> Weight:
        """Return the rows `indices`, copying the file's bytes.

        Raises `IndexError` for rows that do not exist.
        """
        self.check_rows(indices)
        shape = (len(indices), self.shape[1])
        return Weight(self.name, self.bytes()[indices], self.type, shape, on_host=self.on_host)

    def check_rows(self, indices: NDArray[np.integer]) -> None:
        """Raise `IndexError` unless all `indices` are rows of the matrix."""
        if indices.size and not 0 <= indices.min() <= indices.max() < self.shape[0]:
            raise IndexError(
                f"weight '{self.name}' has {self.shape[0]} rows, asked for {indices.min()} to {indices.max()}"
            )

    def drop_data(self) -> None:
        """Forget the file's bytes, and give the pages of a mapped file back to the system."""
        data, self.data = self.data, None
        owner: Any = data
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, memoryview):
            owner = owner.obj
        if data is None or not isinstance(owner, mmap.mmap):
            return
        start = data.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
        begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages only: others have neighbours
        end = (start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > begin:
            pages.forget(owner, begin, end - begin)
