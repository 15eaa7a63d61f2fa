"""Low-rank adapters: what several fine-tunings add to linears, each row of a pass by its own.

Hu et al., arXiv:2106.09685: y = W x + scale * B (A x). The weights W stay as they are, quantised or not, so
one model serves requests with any adapters, in one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from puna.ops import Array, Backend, Weight

if TYPE_CHECKING:
    from numpy.typing import NDArray


class RowScales:
    """How strongly each adapter, by its number, changes each row of the pass that is being computed."""

    def __init__(self, ops: Backend) -> None:
        self._ops = ops
        self._scales: dict[int, NDArray[np.float32]] = {}  # [rows]
        self._outputs: NDArray[np.int64] | None = None
        self._rows = 0
        self._columns: dict[tuple[int, int], Array] = {}

    def begin(self, scales: Mapping[int, NDArray[np.float32]], outputs: NDArray[np.int64] | None) -> None:
        """A pass begins: `scales` [rows] of each adapter that takes part, `outputs` the rows wanted of it."""
        self.end()
        self._scales, self._outputs = dict(scales), outputs
        self._rows = len(next(iter(scales.values()))) if scales else 0

    def end(self) -> None:
        """No adapter takes part until the next pass."""
        self._scales, self._outputs, self._rows = {}, None, 0
        self._columns.clear()

    @property
    def active(self) -> bool:
        return bool(self._scales)

    def of(self, adapter: int, rows: int) -> float | Array | None:
        """The scale of all `rows` rows, one for each [rows, 1], or None where the adapter takes no part.

        A linear sees either all rows of the pass or those whose results are wanted. Raises `ValueError` for
        another number of rows that do not have one scale in common.
        """
        scales = self._scales.get(adapter)
        if scales is None:
            return None
        if (scales == scales[0]).all():
            return float(scales[0])
        if (column := self._columns.get((adapter, rows))) is None:
            if rows != self._rows:
                if self._outputs is None or rows != len(self._outputs):
                    raise ValueError(f"adapters of {self._rows} rows do not say which {rows} rows these are")
                scales = scales[self._outputs]
            column = self._columns[adapter, rows] = self._ops.array(scales.reshape(-1, 1).copy())
        return column


class LowRank:
    """What adapters add to one linear."""

    def __init__(self, ops: Backend, scales: RowScales) -> None:
        self._ops = ops
        self._scales = scales
        self._parts: list[tuple[int, Weight, Weight]] = []

    def add(self, adapter: int, name: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
        """Adapter number `adapter` adds b a x: `a` [rank, in], `b` [out, rank]."""
        weights = (Weight.from_values(f"{name}.lora_{half}", values) for half, values in zip("ab", (a, b)))  # noqa: B905
        down, up = weights
        for each in (down, up):
            self._ops.pack(each)
        self._parts.append((adapter, down, up))

    def added(self, x: Array, y: Array) -> Array:
        """`y` [rows, out] and what adapters make of `x` [rows, in]."""
        for adapter, down, up in self._parts:
            if (scale := self._scales.of(adapter, len(x))) is not None:
                y = y + self._ops.linear(self._ops.linear(x, down) * scale, up)
        return y
