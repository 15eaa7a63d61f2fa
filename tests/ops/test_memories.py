"""Storage of linear attention's memories: what rows share, what is saved, and what is given back."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from puna.ops import MemoryShape, RemovingMemoryShape, backend_named
from tests.processors import NOT_BUILT

pytest.importorskip("puna._native", reason=NOT_BUILT, exc_type=ImportError)

from puna.ops.cpu.memories import MemoryStorage

Numbers = NDArray[np.float32]

OPS = backend_named("cpu")
SHAPE = 2, 8, 12
ROWS = 12


def storage(*, removes: bool = False) -> MemoryStorage:
    made = OPS.memories(ROWS, (RemovingMemoryShape if removes else MemoryShape)(*SHAPE))
    assert isinstance(made, MemoryStorage)
    made.provide(ROWS)
    return made


def go_on(
    memories: MemoryStorage, count: int, source: int, target: int, *, seed: int = 0, removes: bool = False
) -> Numbers:
    """Evaluate random inputs `seed`, [count, heads, value_dim], from row `source` on to row `target`."""
    heads, key_dim, value_dim = SHAPE
    random = np.random.default_rng(seed)
    keys = random.standard_normal((4, count, heads, key_dim), np.float32) / 4
    values = random.standard_normal((count, heads, value_dim), np.float32)
    targets = np.full(count, -1, np.int32)
    targets[-1] = target
    return OPS.linear_attention(
        keys[0], keys[1], values, np.full((count, heads), -0.25, np.float32), None, None, memories,
        np.zeros(count, np.int32), np.full(count, source, np.int32), targets,
        removal=(keys[2], keys[3]) if removes else None,
    )  # fmt: skip


def rows(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 20])
def test_a_row_read_and_written_elsewhere_goes_on_with_the_same_bits(count: int) -> None:
    memories, other = storage(), storage()
    go_on(memories, count, 0, 3)
    saved = memories.read(rows(3))
    assert saved.shape == (1, memories.shape[1])
    assert saved.nbytes == memories.row_bytes
    other.write(rows(5), saved)
    assert np.array_equal(other.numbers(rows(5)), memories.numbers(rows(3)))
    assert np.array_equal(go_on(other, 9, 5, 6, seed=1), go_on(memories, 9, 3, 4, seed=1))
    assert np.array_equal(other.read(rows(6)), memories.read(rows(4)))


def test_rows_that_go_on_from_one_do_not_change_it_or_each_other() -> None:
    memories = storage()
    go_on(memories, 11, 0, 1)
    before = memories.numbers(rows(1))
    first = go_on(memories, 3, 1, 2, seed=1)
    second = go_on(memories, 9, 1, 3, seed=2)
    assert np.array_equal(memories.numbers(rows(1)), before)
    assert np.array_equal(go_on(memories, 3, 1, 4, seed=1), first)
    assert np.array_equal(go_on(memories, 9, 1, 5, seed=2), second)
    assert np.array_equal(memories.numbers(rows(2, 3)), memories.numbers(rows(4, 5)))


def test_a_pass_may_be_repeated() -> None:
    memories = storage()
    go_on(memories, 5, 0, 1)
    once = go_on(memories, 6, 1, 2, seed=1)
    left = memories.read(rows(2))
    assert np.array_equal(go_on(memories, 6, 1, 2, seed=1), once)
    assert np.array_equal(memories.read(rows(2)), left)


def test_bases_are_used_again_however_long_sequences_become() -> None:
    memories = storage()
    for step in range(100):
        go_on(memories, 5, step % 2 + 1 if step else 0, (step + 1) % 2 + 1, seed=step)
    assert np.count_nonzero(memories.book[2]) <= 2


def test_rows_given_back_are_zero_and_their_bases_free() -> None:
    memories = storage()
    for row in range(1, ROWS):
        go_on(memories, 10, 0, row, seed=row)
    kept = memories.numbers(rows(1, 2))
    memories.give_back(3, ROWS)
    assert not memories.numbers(np.arange(3, ROWS)).any()
    assert np.array_equal(memories.numbers(rows(1, 2)), kept)
    assert np.count_nonzero(memories.book[2]) == 2
    for row in range(3, ROWS):
        go_on(memories, 10, 0, row, seed=row)
    assert np.array_equal(memories.numbers(rows(1, 2)), kept)


def test_no_bases_stay_behind_when_only_a_late_row_was_left() -> None:
    memories = storage()
    for row in range(1, ROWS):
        go_on(memories, 10, 0, row, seed=row)
    go_on(memories, 5, ROWS - 1, 1, seed=99)
    kept = memories.numbers(rows(1))
    memories.give_back(2, ROWS)
    assert np.array_equal(memories.numbers(rows(1)), kept)
    assert np.flatnonzero(memories.book[2]).tolist() == [1]
    memories.give_back(0, ROWS)
    assert not memories.book.any()


def test_as_many_rows_stay_as_there_are_bases_for() -> None:
    memories, every = storage(), np.arange(ROWS)
    numbers = np.random.default_rng(0).standard_normal((ROWS, *SHAPE), np.float32)
    memories.put(every[::-1], numbers[::-1])  # the first rows have the last bases
    memories.give_back(4, ROWS)
    assert np.array_equal(memories.numbers(every[:4]), numbers[:4])
    assert np.flatnonzero(memories.book[2]).tolist() == [1, 2, 3, 4]


def test_every_row_can_be_written_and_copied() -> None:
    memories, every = storage(), np.arange(ROWS)
    numbers = np.random.default_rng(0).standard_normal((ROWS, *SHAPE), np.float32)
    memories.put(every, numbers)
    assert np.array_equal(memories.numbers(every), numbers)
    memories.copy(every, every[::-1])
    assert np.array_equal(memories.numbers(every), numbers[::-1])


@pytest.mark.parametrize("removes", [False, True])
@pytest.mark.parametrize("additions", [-1, 0.5, 1, 3, 8, np.nan, np.inf, 6])
def test_impossible_numbers_of_additions_are_noticed(additions: float, removes: bool) -> None:
    memories = storage(removes=removes)
    go_on(memories, 3, 0, 1, removes=removes)
    saved = memories.read(rows(1))
    assert memories.is_valid(saved)
    saved[:, -1] = additions
    assert memories.is_valid(saved) == (additions in ((0, 6) if removes else (0, 1, 3, 6)))


@pytest.mark.parametrize(("place", "value"), [((0, 1), -1), ((0, 1), 99), ((1, 1), -1), ((1, 1), 8)])
def test_bases_and_additions_that_do_not_exist_are_refused(place: tuple[int, int], value: int) -> None:
    memories = storage()
    go_on(memories, 3, 0, 1)
    memories.book[place] = value
    with pytest.raises(IndexError, match="memory 1 has base"):
        go_on(memories, 1, 1, 2)


def test_a_row_cannot_be_written_twice_or_also_read() -> None:
    memories = storage()
    heads, key_dim, value_dim = SHAPE
    keys, values = np.ones((2, heads, key_dim), np.float32), np.ones((2, heads, value_dim), np.float32)
    given = keys, keys, values, np.zeros((2, heads), np.float32), None, None, memories
    each, zeros = np.arange(2, dtype=np.int32), np.zeros(2, np.int32)
    for _ in range(2 * ROWS):
        with pytest.raises(IndexError, match="memory 3 is written twice"):
            OPS.linear_attention(*given, each, zeros, np.array([3, 3], np.int32))
        with pytest.raises(IndexError, match="memory 2 is both read and written"):
            OPS.linear_attention(*given, each, np.array([1, 2], np.int32), np.array([2, 3], np.int32))
    assert not memories.book.any()


def test_rows_that_remove_add_twice() -> None:
    memories = storage(removes=True)
    go_on(memories, 3, 0, 1, removes=True)
    assert memories.read(rows(1))[0, -1] == 6
    go_on(memories, 1, 0, 2)
    with pytest.raises(IndexError, match="1 additions"):
        go_on(memories, 1, 2, 3, removes=True)
