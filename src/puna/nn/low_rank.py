"""Low-rank adapters: several fine-tunings applied to linears, each row of a pass with its own.

Hu et al., arXiv:2106.09685: y = W x + scale * B (A x). The weights W stay as they are, quantised or not, so
one model serves requests with any adapters in one batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np

from puna.ops import Array, Backend, ExpertWeights, LowRankWeights, Weight

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.integer]


class RowScales:
    """Strength of each adapter, by its number, for each row of the current pass."""

    def __init__(self, ops: Backend) -> None:
        self.ops = ops
        self.count = 0  # of the adapters that the model was loaded with
        self._scales: dict[int, NDArray[np.float32]] = {}  # [rows]
        self._outputs: Rows | None = None
        self._others: Rows | None = None
        self._rows = 0
        self._columns: dict[tuple[int, int], Array] = {}
        self._tables: dict[int, Array] = {}
        self._recorded: Array | None = None

    def begin(self, scales: Mapping[int, NDArray[np.float32]], outputs: Rows | None) -> None:
        """Begin a pass: `scales` [rows] of the adapters taking part, `outputs` the rows wanted from it."""
        self.end()
        self._scales, self._outputs = dict(scales), outputs
        self._rows = len(next(iter(scales.values()))) if scales else 0

    def end(self) -> None:
        """End the pass: no adapter takes part until the next one."""
        self._scales, self._outputs, self._rows = {}, None, 0
        self._columns.clear()
        self._tables.clear()

    @contextmanager
    def part(self, begin: int, end: int, outputs: Rows | None) -> Iterator[Mapping[int, NDArray[np.float32]]]:
        """Let rows [begin, end) be all of the pass, with `outputs` wanted from them; yield their scales."""
        scales, all_outputs = self._scales, self._outputs
        own = {adapter: each[begin:end] for adapter, each in scales.items()}
        self.begin(own, outputs)
        try:
            yield own
        finally:
            self.begin(scales, all_outputs)

    @contextmanager
    def standing_for(self, rows: Rows) -> Iterator[None]:
        """Make linears treat each row they receive as the pass's row whose number is given in `rows`."""
        before = self._others, self._columns, self._tables
        self._others, self._columns, self._tables = rows, {}, {}
        try:
            yield
        finally:
            self._others, self._columns, self._tables = before

    @contextmanager
    def recorded(self, table: Array) -> Iterator[None]:
        """Let linears read scales from `table` [rows, adapters], which recorded passes read anew."""
        self._recorded = table
        try:
            yield
        finally:
            self._recorded = None

    @property
    def active(self) -> bool:
        return bool(self._scales)

    def each(self, adapter: int, rows: int) -> NDArray[np.float32] | None:
        """Return the scales [rows] of `rows` rows, or None if the adapter takes no part.

        A linear receives either all rows of the pass or those whose results are wanted, unless rows stand for
        others. Raises `ValueError` for any other number of rows unless all rows have one scale.
        """
        scales = self._scales.get(adapter)
        return None if scales is None else self._spread(scales, rows)

    def _spread(self, scales: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
        """Return the scales of the `rows` rows that a linear receives, from those of the whole pass."""
        if (scales == scales[0]).all():
            return np.full(rows, scales[0])
        if self._others is not None:
            scales = scales[self._others]
        elif rows != self._rows and self._outputs is not None:
            scales = scales[self._outputs]
        if len(scales) != rows:
            raise ValueError(f"adapters of {self._rows} rows do not say which {rows} rows these are")
        return scales

    def values(self, rows: int) -> NDArray[np.float32]:
        """Return the scales of all adapters, [rows, adapters]; see `each`."""
        found = np.zeros((rows, self.count), np.float32)
        for adapter in self._scales:
            found[:, adapter] = self.each(adapter, rows)
        return found

    def table(self, rows: int) -> Array:
        """Return the same for operations. Raises `ValueError` in a recording for some of its rows alone."""
        if self._recorded is not None:
            if self._others is not None or len(self._recorded) != rows:
                raise ValueError(
                    f"a recorded pass of {len(self._recorded)} rows has no scales for {rows} others"
                )
            return self._recorded
        if (table := self._tables.get(rows)) is None:  # shared by every linear of a pass
            table = self._tables[rows] = self.ops.array(self.values(rows))
        return table

    def takes_part(self, adapters: Iterable[int]) -> bool:
        """Whether any of `adapters` takes part in the pass."""
        return self._recorded is not None or any(adapter in self._scales for adapter in adapters)

    def of(self, adapter: int, rows: int) -> float | Array | None:
        """Return one scale for all `rows` rows, or a column [rows, 1]; see `each`."""
        scales = self._scales.get(adapter)
        if scales is None:
            return None
        if (scales == scales[0]).all():
            return float(scales[0])
        if (column := self._columns.get((adapter, rows))) is None:  # shared by every linear of a pass
            column = self.ops.array(self._spread(scales, rows).reshape(-1, 1).copy())
            self._columns[adapter, rows] = column
        return column

    def changed(self, adapters: Iterable[int], rows: int) -> Rows:
        """Return which of `rows` rows any of `adapters` changes, in ascending order."""
        found = np.zeros(rows, bool)
        for adapter in adapters:
            if (scales := self.each(adapter, rows)) is not None:
                found |= scales != 0
        return found.nonzero()[0]


class StagesRowScales:
    """The strengths in all stages of a model, which compute the same passes."""

    def __init__(self, stages: Sequence[RowScales]) -> None:
        self._stages = stages

    def begin(self, scales: Mapping[int, NDArray[np.float32]], outputs: Rows | None) -> None:
        """See `RowScales.begin`."""
        for each in self._stages:
            each.begin(scales, outputs)

    def end(self) -> None:
        """See `RowScales.end`."""
        for each in self._stages:
            each.end()

    @property
    def count(self) -> int:
        """Adapters that the model was loaded with."""
        return self._stages[0].count

    @count.setter
    def count(self, count: int) -> None:
        for each in self._stages:
            each.count = count

    def values(self, rows: int) -> NDArray[np.float32]:
        """See `RowScales.values`."""
        return self._stages[0].values(rows)

    @contextmanager
    def recorded(self, ops: Backend, table: Array) -> Iterator[None]:
        """Let linears of stages on `ops` read scales from `table`; see `RowScales.recorded`."""
        with ExitStack() as stack:
            for each in self._stages:
                if each.ops is ops:
                    stack.enter_context(each.recorded(table))
            yield

    @property
    def active(self) -> bool:
        return self._stages[0].active


class LowRank:
    """Adapters of one linear."""

    def __init__(self, ops: Backend, scales: RowScales) -> None:
        self._ops = ops
        self._scales = scales
        self._weights = LowRankWeights()

    def add(self, adapter: int, name: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
        """Add adapter number `adapter`, which computes b a x: `a` [rank, in], `b` [out, rank]."""
        self._weights.add(adapter, name, a, b)
        self._ops.pack_low_rank(self._weights)

    def added(self, x: Array, y: Array) -> Array:
        """Return `y` [rows, out], which may be overwritten, plus the adapters' outputs for `x` [rows, in]."""
        if not self._scales.takes_part(part.adapter for part in self._weights.parts):
            return y
        return self._ops.add_low_rank(y, x, self._weights, self._scales.table(len(x)))


class LowRankRows:
    """Adapters of a table [rows, hidden]."""

    def __init__(self, ops: Backend, scales: RowScales) -> None:
        self._ops = ops
        self._scales = scales
        self._parts: list[tuple[int, Weight, Weight]] = []

    def add(self, adapter: int, name: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
        """Add adapter number `adapter`, which computes (b a)^T: `a` [rank, rows], `b` [hidden, rank]."""
        table = Weight.from_values(f"{name}.lora_a", a.T)  # a lookup table, so not packed
        up = Weight.from_values(f"{name}.lora_b", b)
        self._ops.pack(up)
        self._parts.append((adapter, table, up))

    def added(self, x: Array, y: Array) -> Array:
        """Return `y` [rows, hidden] plus the adapters' rows for the tokens `x`, int32 [rows]."""
        for adapter, table, up in self._parts:
            if (scale := self._scales.of(adapter, len(x))) is not None:
                y = y + self._ops.linear(self._ops.embedding(x, table) * scale, up)
        return y


class ExpertLowRank:
    """Adapters of one linear per expert."""

    def __init__(self, ops: Backend, scales: RowScales) -> None:
        self._ops = ops
        self._scales = scales
        self._parts: list[tuple[int, ExpertWeights, ExpertWeights]] = []

    def add(self, adapter: int, name: str, a: NDArray[np.float32], b: NDArray[np.float32]) -> None:
        """Add adapter number `adapter`, which computes b a x for each expert.

        `a` is [experts, rank, in], `b` [experts, out, rank].
        """
        down, up = (
            ExpertWeights(
                Weight.from_values(f"{name}.lora_{half}", each.reshape(-1, each.shape[2])), len(each)
            )
            for half, each in (("a", a), ("b", b))
        )
        for each in (down, up):
            self._ops.pack(each.weight)
        self._parts.append((adapter, down, up))

    def changed(self, rows: int) -> Rows:
        """Return which of `rows` rows adapters change, in ascending order."""
        return self._scales.changed((adapter for adapter, *_ in self._parts), rows)

    def added(self, x: Array, y: Array, chosen: Array, rows: int, each: Rows) -> Array:
        """Return `y` [T, out] plus the adapters' outputs for `x` [T, in] at the experts `chosen` [T].

        These are rows `each` [T] of `rows`.
        """
        for adapter, down, up in self._parts:
            if (scales := self._scales.each(adapter, rows)) is not None:
                scale = self._ops.array(scales[each].reshape(-1, 1))
                narrow = self._ops.expert_linear(x, chosen, down) * scale
                y = y + self._ops.expert_linear(narrow, chosen, up)
        return y
