"""Storage that persists between passes: a cache's keys and values, and states of recurrent layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from puna.errors import NotSupportedError
from puna.gguf import GGMLType

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

    from puna.ops.array import Array

#: Types that keys and values can be stored as.
KV_TYPES = (GGMLType.F32, GGMLType.F16, GGMLType.BF16, GGMLType.Q8_0, GGMLType.Q4_0)

_DTYPES = {GGMLType.F32: np.float32, GGMLType.F16: np.float16, GGMLType.BF16: np.uint16}


def row_bytes(kind: GGMLType, shape: tuple[int, ...]) -> int:
    """Return the bytes of one row of `shape` numbers. Raises `NotSupportedError` for incomplete blocks."""
    if shape[-1] % kind.block_size:
        raise NotSupportedError(
            f"heads of {shape[-1]} numbers do not fill {kind.name} blocks of {kind.block_size}; "
            "use f16, bf16 or f32 for this model's key/value cache"
        )
    return kind.nbytes(int(np.prod(shape)))


def stored_form(kind: GGMLType, shape: tuple[int, ...]) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and shape of one stored row of `shape` numbers.

    bfloat16 numbers are the upper halves of float32 ones, as uint16. Quantised numbers are uint8 [..., last /
    32, block bytes], a block being a float16 scale and the codes of 32 numbers: 34 bytes in Q8_0, 18 in Q4_0.
    """
    if kind in _DTYPES:
        return np.dtype(_DTYPES[kind]), shape
    return np.dtype(np.uint8), (*shape[:-1], shape[-1] // kind.block_size, kind.type_size)


class MemoryShape(NamedTuple):
    """The shape of a state that is a memory of linear attention (`Backend.memories`)."""

    heads: int
    key_dim: int
    value_dim: int

    @property
    def removes(self) -> bool:
        """Whether a row removes something before it adds (`removal` of `Backend.linear_attention`)."""
        return False


class RemovingMemoryShape(MemoryShape):
    """The shape of a memory whose rows remove something before they add (RWKV 7)."""

    @property
    def removes(self) -> bool:
        return True


class Storage(ABC):
    """Rows of numbers [rows, *row_shape] stored as `kind`, zero until written.

    Memory is taken as rows come into use, and `provide` and `give_back` may move them. Row indices are on the
    host, because they are the cache's bookkeeping.
    """

    def __init__(self, kind: GGMLType, rows: int, row_shape: tuple[int, ...]) -> None:
        self.kind = kind
        self.shape = (rows, *row_shape)
        self.row_bytes = row_bytes(kind, row_shape)

    @property
    def moves(self) -> int:
        """Times that the rows have moved to another address, which recordings hold."""
        return 0

    @abstractmethod
    def provide(self, rows: int) -> None:
        """Prepare the first `rows` rows for use. Raises `MemoryError`."""

    @abstractmethod
    def give_back(self, begin: int, end: int) -> None:
        """Set rows [begin, end) to zero and release their memory."""

    @abstractmethod
    def copy(self, sources: NDArray[np.integer], targets: NDArray[np.integer]) -> None:
        """Set rows `targets` to what rows `sources` were before any of them was written."""

    @abstractmethod
    def read(self, rows: NDArray[np.integer]) -> NDArray[Any]:
        """Return a copy of `rows` as they are stored (see `stored_form`)."""

    def is_valid(self, stored: NDArray[Any]) -> bool:
        """Return whether rows of this shape and type may be written; a damaged file can have others."""
        return True

    @abstractmethod
    def write(self, rows: NDArray[np.integer], stored: NDArray[Any]) -> None:
        """Set `rows` to what `read` returned, possibly from another storage of this kind and shape.

        All backends store keys, values and states alike, but not memories.
        """

    @abstractmethod
    def numbers(self, rows: NDArray[np.integer]) -> Array:
        """Return a copy of `rows` as float32 [len(rows), *row_shape]; of memories [len(rows), *shape]."""

    @abstractmethod
    def put(self, rows: NDArray[np.integer], numbers: Array) -> None:
        """Set `rows` to `numbers` float32 [len(rows), *row_shape], rounded or quantised."""

    @abstractmethod
    def by_head(self) -> Storage:
        """Return rows [rows, heads, dim] as [rows * heads, 1, dim], to be read until they move."""

    @abstractmethod
    def close(self) -> None:
        """Release all memory as soon as no computation uses it."""
