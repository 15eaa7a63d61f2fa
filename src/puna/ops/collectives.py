"""Operations of several processes that compute one model together, each with a device of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from puna.ops.array import Array


class Collectives(Protocol):
    """Operations of all ranks of a model together, which each of them calls in the same order.

    Each waits for the other ranks. If one of them is gone, it raises `RuntimeError`; or its result, which the
    device computes later, may be nonsense, or not come before `abort`.
    """

    rank: int  # of this process, from 0

    def sum(self, x: Array) -> Array:
        """Return the sum of all ranks' arrays `x` [T, n]; may change `x`."""

    def join(self, x: Array, widths: Sequence[int]) -> Array:
        """Return the columns of all ranks' arrays [T, widths[rank]], in the order of ranks."""

    def abort(self) -> None:
        """End operations that wait for other ranks, where that is possible; it may itself wait for them."""

    def close(self) -> None:
        """Leave the other ranks."""
