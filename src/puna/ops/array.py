"""What models, caches and the engine may do with an array, whatever backend it is of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Array(Protocol):
    """Numbers where a backend computes: float32, or int32 and int64 for indices.

    An array is only given to the backend that made it. Everything that is not listed here is an operation of
    the backend, reading the values included (`Backend.numpy`).
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int:
        """The first of `shape`."""

    def __getitem__(self, index: Any, /) -> Any:
        """A view, by integers and slices, or a copy of the rows that an array of indices names."""

    def __add__(self, other: Any, /) -> Any:
        """The sum with a number, or with an array that broadcasts as in numpy."""

    def __radd__(self, other: Any, /) -> Any: ...

    def __mul__(self, other: Any, /) -> Any:
        """The product with a number, or with an array that broadcasts as in numpy."""

    def __rmul__(self, other: Any, /) -> Any: ...

    @property
    def reshape(self) -> Callable[..., Any]:
        """`reshape(*sizes)`: a view of a contiguous array; one of the sizes may be -1."""


class IndexBuffer(Protocol):
    """Indices that the host writes and operations read, at an address that stays.

    A recorded pass reads them anew each time (see `puna.ops.recording`).
    """

    host: NDArray[np.int32]
    array: Array
    mirrored: bool  # whether operations read a copy, which is as old as the last `upload`

    def upload(self, begin: int = 0, end: int | None = None) -> None:
        """Let operations see what `host` holds at [begin, end), counted in the flattened buffer."""
