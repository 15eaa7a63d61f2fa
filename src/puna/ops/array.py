"""The operations on arrays that models, caches and the engine may use, whatever the backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Array(Protocol):
    """Numbers in a backend's memory: float32, or int32 and int64 for indices.

    An array may only be passed to the backend that made it. Anything not listed here is an operation of the
    backend, including reading the values (`Backend.numpy`).
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int:
        """Return the first entry of `shape`."""

    def __getitem__(self, index: Any, /) -> Any:
        """Return a view for integers and slices, or a copy of the rows that an array of indices selects."""

    def __add__(self, other: Any, /) -> Any:
        """Return the sum with a number, or with an array that broadcasts as in numpy."""

    def __radd__(self, other: Any, /) -> Any: ...

    def __mul__(self, other: Any, /) -> Any:
        """Return the product with a number, or with an array that broadcasts as in numpy."""

    def __rmul__(self, other: Any, /) -> Any: ...

    @property
    def reshape(self) -> Callable[..., Any]:
        """`reshape(*sizes)`: a view of a contiguous array; one of the sizes may be -1."""


class NumberBuffer(Protocol):
    """Numbers that the host writes and operations read, at a fixed address.

    A recorded pass reads them anew each time (see `puna.ops.recording`).
    """

    host: NDArray[np.float32]
    array: Array

    def upload(self) -> None:
        """Make what `host` holds visible to operations."""


class IndexBuffer(Protocol):
    """Indices that the host writes and operations read, at a fixed address.

    A recorded pass reads them anew each time (see `puna.ops.recording`).
    """

    host: NDArray[np.int32]
    array: Array
    mirrored: bool  # whether operations read a copy, as of the last `upload`

    def upload(self, ranges: Sequence[tuple[int, int]] | None = None) -> None:
        """Make what `host` holds at ranges [begin, end) of the flattened buffer visible; None: everything."""
