"""A weight matrix: as the file has it, and in the layout of the kernels."""

from __future__ import annotations

import contextlib
import mmap
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

try:
    from puna import _native
except ImportError:
    _native = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from puna.gguf import GGMLType

#: More rows than any layout interleaves, and a multiple of what each does.
_ROWS = 64

# Values converted at a time where a type has no kernel of its own: 16 MiB of float32.
_CHUNK_VALUES = 4 << 20


class Weight:
    """A matrix [out, in] in one of GGUF's block types.

    `data` are the file's bytes, usually a view on its memory map, until `pack` has brought the matrix into
    the kernels' layout. Embeddings read single rows and are better left unpacked; a table that is also the
    output head is simply two weights over the same bytes.
    """

    def __init__(self, name: str, data: np.ndarray, type: GGMLType, shape: tuple[int, ...]) -> None:
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
        self.nbytes = data.nbytes
        self.data: np.ndarray | None = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self._matrix: _native.Matrix | None = None

    @classmethod
    def from_tensor(cls, name: str, tensor: Tensor) -> Weight:
        """A float32 weight with the values of `tensor` [out, in]."""
        from puna.gguf import GGMLType

        values = tensor.detach().float().contiguous().numpy()
        return cls(name, values.reshape(-1).view(np.uint8), GGMLType.F32, tuple(tensor.shape))

    def pack(self, keep_raw: bool = False) -> None:
        """Bring the matrix into the layout the kernels read, and let go of the file's bytes.

        Does nothing the second time, or where the reference operations are in use.
        """
        from puna import ops

        if self._matrix is None and ops.implementation() != "reference":
            self._pack()
            if not keep_raw:
                self.drop_data()

    @property
    def matrix(self) -> _native.Matrix:
        """The packed matrix; packs it if that has not been done."""
        if self._matrix is None:
            self._pack()
        assert self._matrix is not None
        return self._matrix

    def dequantize(self) -> Tensor:
        """All values, float32 [out, in]."""
        if self.data is None:
            return self.rows(torch.arange(self.shape[0], dtype=torch.int32))
        from puna.gguf import dequantize

        return torch.from_numpy(dequantize(self.data, self.type).reshape(self.shape))

    def rows(self, indices: Tensor) -> Tensor:
        """Some rows, float32 [len(indices), in]. Raises `IndexError` for rows there are not."""
        self.check_rows(indices)
        if self.data is None:
            ids, result = indices.int().contiguous(), torch.empty(indices.numel(), self.shape[1])
            self.matrix.unpack_rows(ids.data_ptr(), ids.numel(), result.data_ptr())
            return result
        from puna.gguf import dequantize

        stored = self.data.reshape(self.shape[0], -1)[indices.numpy()]
        return torch.from_numpy(dequantize(stored.reshape(-1), self.type).reshape(-1, self.shape[1]))

    def row_range(self, begin: int, end: int) -> Weight:
        """The rows from `begin` to before `end`, over the same bytes of the file."""
        assert self.data is not None, "a packed matrix is taken apart no more"
        rows = self.data.reshape(self.shape[0], -1)[begin:end]
        return Weight(self.name, rows.reshape(-1), self.type, (end - begin, self.shape[1]))

    def check_rows(self, indices: Tensor) -> None:
        """Raises `IndexError` unless all `indices` are rows of the matrix."""
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < self.shape[0]:
            raise IndexError(
                f"weight '{self.name}' has {self.shape[0]} rows, asked for {int(indices.min())} "
                f"to {int(indices.max())}"
            )

    def drop_data(self) -> None:
        """Forget the file's bytes, and give their pages back to the system if they are a mapped file's."""
        data, self.data = self.data, None
        owner: Any = data
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if isinstance(owner, memoryview):
            owner = owner.obj
        if data is None or not isinstance(owner, mmap.mmap):
            return
        start = data.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
        begin = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE  # whole pages only: the others have neighbours
        end = (start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > begin:
            with contextlib.suppress(
                AttributeError, OSError, ValueError
            ):  # saves memory, nothing depends on it
                owner.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _pack(self) -> None:
        assert self.data is not None
        data, kind = self.data, int(self.type)
        if not _native.can_decode(kind):
            data, kind = self._converted()
        self._matrix = _native.Matrix(data.ctypes.data, data.nbytes, kind, *self.shape)

    def _converted(self) -> tuple[np.ndarray, int]:
        """The values as float16, or as float32 where they do not fit, for types without a kernel.

        float16 keeps 11 bits of each value, and float kernels do not round activations: the result is closer
        to the exact product than any kernel that works on 8-bit integers.
        """
        from puna.gguf import GGMLType, dequantize

        assert self.data is not None
        rows, columns = self.shape
        stored = self.data.reshape(rows, -1)
        step = max(1, _CHUNK_VALUES // max(columns, 1))

        def converted(number: type[np.floating]) -> np.ndarray:
            result = np.empty((rows, columns), number)
            for begin in range(0, rows, step):
                values = dequantize(stored[begin : begin + step].reshape(-1), self.type)
                result[begin : begin + step] = values.reshape(-1, columns)
            return result

        with np.errstate(over="ignore"):
            half = converted(np.float16)
        if np.isfinite(half).all():
            return half.reshape(-1).view(np.uint8), int(GGMLType.F16)
        return converted(np.float32).reshape(-1).view(np.uint8), int(GGMLType.F32)


def packed_bytes(type: GGMLType, shape: tuple[int, ...]) -> int:
    """What `Weight.pack` will hold for a matrix of `shape` [out, in] of `type`.

    Types without a kernel are taken to fit float16. With the reference operations it is the file's bytes.
    """
    from puna import ops
    from puna.gguf import GGMLType

    rows, columns = shape
    if ops.implementation() == "reference":
        return type.nbytes(rows * columns)
    kind = type if _native.can_decode(int(type)) else GGMLType.F16
    group_rows, group_bytes = _packed_group(kind, columns)
    return -(-rows // group_rows) * group_bytes


@lru_cache(maxsize=256)
def _packed_group(type: GGMLType, columns: int) -> tuple[int, int]:
    """How many rows a layout interleaves and the bytes of them, seen in matrices of a few rows of zeros."""

    def size(rows: int) -> int:
        zeros = np.zeros(type.nbytes(rows * columns), np.uint8)
        return _native.Matrix(zeros.ctypes.data, zeros.nbytes, int(type), rows, columns).nbytes

    group_bytes = size(1)
    return _ROWS * group_bytes // max(size(_ROWS), 1) or 1, group_bytes
