"""The bookkeeping of a cache is always consistent."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from puna.errors import CacheFullError
from puna.kvcache.cells import CELL_BYTES, Cells, FreeCells, move, plan_moves, table_bytes, table_shape

CAPACITY, SEQUENCES, LONGEST = 24, 3, 20


def made(capacity: int, sequences: int, longest: int) -> Cells:
    return Cells(capacity, longest, np.zeros(table_shape(sequences, longest), np.int32), mirrored=True)


def append(cells: Cells, sequence: int, count: int) -> NDArray[np.int32]:
    """Append `count` new cells to a sequence."""
    placed, begin = cells.allocate(count), int(cells.length[sequence])
    cells.append(np.full(count, sequence, np.int32), np.arange(begin, begin + count, dtype=np.int32), placed)
    return placed


class CellsMachine(RuleBasedStateMachine):
    """Random operations on `Cells`, against lists of made-up contents."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = made(CAPACITY, SEQUENCES, LONGEST)
        self.mirror = self.cells.table.copy()  # as kept by a backend that cannot read the host's memory
        self.contents: dict[int, object] = {}  # cell -> its "written" content
        self.expected: list[list[object | None]] = [[] for _ in range(SEQUENCES)]

    sequences = st.integers(0, SEQUENCES - 1)

    @rule(sequence=sequences, count=st.integers(1, 8))
    def append(self, sequence: int, count: int) -> None:
        if len(self.expected[sequence]) + count > LONGEST:
            return
        free = CAPACITY - len({cell for s in range(SEQUENCES) for cell in self.cells.cells(s).tolist()})
        if count > free:
            with pytest.raises(CacheFullError, match=f"{free} free cells of {CAPACITY}"):
                self.cells.allocate(count)
            return
        placed = append(self.cells, sequence, count)
        for cell in placed.tolist():
            self.contents[cell] = item = object()
            self.expected[sequence].append(item)

    @rule(source=sequences, taker=sequences, count=st.integers(0, LONGEST))
    def share(self, source: int, taker: int, count: int) -> None:
        if source == taker:
            return
        self.cells.share(source, taker, count)
        self.expected[taker] = self.expected[source][:count]

    @rule(sequence=sequences, length=st.integers(0, LONGEST))
    def truncate(self, sequence: int, length: int) -> None:
        self.cells.truncate(sequence, length)
        del self.expected[sequence][length:]

    @precondition(lambda self: any(self.expected))
    @rule(sequence=sequences, data=st.data())
    def cut(self, sequence: int, data: st.DataObject) -> None:
        length = len(self.expected[sequence])
        begin = data.draw(st.integers(0, length))
        end = data.draw(st.integers(begin, length))
        self.cells.cut(sequence, begin, end)
        del self.expected[sequence][begin:end]

    @rule(firsts=st.lists(st.integers(0, LONGEST), min_size=SEQUENCES, max_size=SEQUENCES))
    def expire(self, firsts: list[int]) -> None:
        wanted = np.array(firsts, np.int32)
        freed, before = self.cells.freed_by(self.cells.expired(wanted)), self.cells.free
        self.cells.expire(wanted)
        assert self.cells.free == before + freed
        for expected, first in zip(self.expected, firsts, strict=True):
            expected[:first] = [None] * min(first, len(expected))

    @rule(limit=st.integers(1, CAPACITY))
    def compact(self, limit: int) -> None:
        if (moves := plan_moves(self.cells, limit)) is not None:
            sources, targets = (part.tolist() for part in moves)
            written = [self.contents.get(source) for source in sources]
            self.contents.update(zip(targets, written, strict=True))
            move(self.cells, *moves)

    @invariant()
    def books_balance(self) -> None:
        self.cells.check()

    @invariant()
    def the_changes_are_all_there_is_to_copy(self) -> None:
        for begin, end in self.cells.take_changes():
            self.mirror.reshape(-1)[begin:end] = self.cells.table.reshape(-1)[begin:end]
        for sequence in range(SEQUENCES):
            held = slice(self.cells.first[sequence], self.cells.length[sequence])
            assert np.array_equal(self.mirror[sequence, held], self.cells.table[sequence, held])

    @invariant()
    def every_sequence_holds_what_was_written(self) -> None:
        for sequence, expected in enumerate(self.expected):
            held = [self.contents[cell] for cell in self.cells.cells(sequence).tolist()]
            assert held == [item for item in expected if item is not None]
            first = int(self.cells.first[sequence])
            assert all(item is None for item in expected[:first])
            assert None not in expected[first:]
            assert self.cells.length[sequence] == len(expected)


CellsMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCells = CellsMachine.TestCase


def test_the_lowest_free_cells_are_taken_in_order() -> None:
    cells = made(8, 2, 8)
    append(cells, 0, 3)
    append(cells, 1, 3)
    cells.cut(0, 1, 2)
    assert cells.allocate(3).tolist() == [1, 6, 7]


def test_allocating_too_much_changes_nothing() -> None:
    cells = made(4, 1, 8)
    append(cells, 0, 3)
    with pytest.raises(CacheFullError):
        cells.allocate(2)
    cells.check()
    assert cells.allocate(1).tolist() == [3]


def test_free_cells_far_apart_are_found() -> None:
    cells = made(100_000, 1, 100_000)
    append(cells, 0, 100_000)
    cells.cut(0, 99_999, 100_000)
    cells.cut(0, 5, 6)
    assert cells.allocate(2).tolist() == [5, 99_999]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1500), st.data())
def test_free_cells_are_the_lowest(capacity: int, data: st.DataObject) -> None:
    free, expected = FreeCells(capacity), set(range(capacity))
    for _ in range(8):
        count = data.draw(st.integers(0, len(expected)))
        taken = free.take(count).tolist()
        assert taken == sorted(expected)[:count]
        expected -= set(taken)
        used = sorted(set(range(capacity)) - expected)
        assert free.highest_used() == (used[-1] + 1 if used else 0)
        back = data.draw(st.lists(st.sampled_from(used), unique=True)) if used else []
        if back:
            free.give(np.array(back, np.int32))
            expected |= set(back)
        assert free.count == len(expected)
        assert free.is_free().nonzero()[0].tolist() == sorted(expected)


def test_the_check_finds_a_leak() -> None:
    cells = made(4, 1, 4)
    cells.references[2] = 1
    with pytest.raises(AssertionError, match="reference counts"):
        cells.check()
    assert np.array_equal(cells.cells(0), [])


def test_bookkeeping_takes_the_announced_bytes() -> None:
    cells = made(100_000, 3, 60_000)
    free = cells.free_cells
    assert cells.table.nbytes == table_bytes(3, 60_000)
    each = cells.references.nbytes + free.is_free().nbytes
    assert each == CELL_BYTES * 100_000
    counts = [value for value in vars(free).values() if isinstance(value, np.ndarray)]
    assert sum(value.nbytes for value in counts) < 1.01 * free.is_free().nbytes
