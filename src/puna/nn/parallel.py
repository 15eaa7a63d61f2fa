"""Linears of which each rank has a part of the matrix (Shoeybi et al., Megatron-LM, arXiv:1909.08053)."""

from __future__ import annotations

from collections.abc import Sequence

from puna.nn.layers import Linear
from puna.ops import Array
from puna.ops.collectives import Collectives


class SummedLinear(Linear):
    """A linear of which each rank has some columns, and computes a part of every sum."""

    def __init__(self, own: Linear, ranks: Collectives) -> None:
        """`own` has this rank's columns, and the whole bias, which one rank adds."""
        super().__init__(own.ops, own.weight, own.bias if ranks.rank == 0 else None)
        self.ranks = ranks

    def __call__(self, x: Array) -> Array:
        """Map this rank's [rows, part of in] to [rows, out]."""
        return self.ranks.sum(super().__call__(x))


class JoinedLinear(Linear):
    """A linear of which each rank has some rows, whose results are put together."""

    def __init__(self, own: Linear, ranks: Collectives, widths: Sequence[int]) -> None:
        """`own` has this rank's rows; `widths` are the rows of each rank."""
        super().__init__(own.ops, own.weight, own.bias)
        self.ranks = ranks
        self.widths = widths

    def __call__(self, x: Array) -> Array:
        """Map [rows, in] to [rows, out]."""
        return self.ranks.join(super().__call__(x), self.widths)
