"""Messages between a preparer and its owner: a pickled tower without weights, then frames of msgpack."""

from __future__ import annotations

from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from puna.vision.limits import ImageLimits
from puna.vision.tower import Prepared

#: Replies longer than this cannot come from our own code.
MAX_REPLY_BYTES: Final = 1 << 30


class _Message(msgspec.Struct, tag=True, frozen=True):
    pass


class Prepare(_Message, frozen=True):
    """Request to decode the image file `data`, which errors call `name`.

    Answered by `PreparedImage` or `PreparerFailure`.
    """

    data: bytes
    name: str
    limits: ImageLimits
    seconds: float  # of processor time


class PreparerReady(_Message, frozen=True):
    """First message of the process, once it has started."""


class Numbers(msgspec.Struct, frozen=True):
    """An array, in C order."""

    shape: tuple[int, ...]
    kind: str
    data: memoryview

    @classmethod
    def of(cls, array: NDArray[Any] | None) -> Self | None:
        if array is None:
            return None
        array = np.ascontiguousarray(array)
        return cls(array.shape, array.dtype.str, array.reshape(-1).view(np.uint8).data)

    def array(self, kind: type[np.generic]) -> NDArray[Any]:
        """Return the array. Raises ValueError unless its type is `kind` and its size matches its shape."""
        if np.dtype(self.kind) != np.dtype(kind):
            raise ValueError(f"an array of {self.kind} came instead of one of {np.dtype(kind).str}")
        return np.frombuffer(self.data, kind).reshape(self.shape)


class PreparedImage(_Message, frozen=True):
    """Image as the tower reads it; decoding `decoded_pixels` took `seconds` of processor time."""

    pixels: Numbers
    rows: int
    grid: tuple[int, int]
    overview: Numbers | None
    order: Numbers | None
    decoded_pixels: int
    seconds: float

    @classmethod
    def of(cls, prepared: Prepared, decoded_pixels: int, seconds: float) -> PreparedImage:
        pixels = Numbers.of(prepared.pixels)
        assert pixels is not None
        return cls(
            pixels, prepared.rows, prepared.grid, Numbers.of(prepared.overview), Numbers.of(prepared.order),
            decoded_pixels, seconds,
        )  # fmt: skip

    @property
    def prepared(self) -> Prepared:
        """The prepared image. Raises ValueError for arrays of the wrong type or size."""
        overview, order = self.overview, self.order
        return Prepared(
            self.pixels.array(np.uint8),
            self.rows,
            self.grid,
            overview=None if overview is None else overview.array(np.uint8),
            order=None if order is None else order.array(np.int64),
        )


class PreparerFailure(_Message, frozen=True):
    """An error; `kind` is a class of `puna.errors`."""

    kind: str
    message: str


FromPreparer = PreparerReady | PreparedImage | PreparerFailure
