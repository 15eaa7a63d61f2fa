"""Runs of cells: what the live picture of a cache is drawn from."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from puna.kvcache.contents import runs_of


def test_run_ends_where_cells_or_positions_do_not_go_on() -> None:
    cells = np.array([4, 5, 6, 9, 10, 11])
    positions = np.array([0, 1, 2, 3, 4, 8])
    assert runs_of(7, cells, positions) == [(7, 4, 3, 0), (7, 9, 2, 3), (7, 11, 1, 8)]


def test_sequence_without_cells_has_no_runs() -> None:
    assert runs_of(0, np.array([], np.int64), np.array([], np.int64)) == []


@given(st.lists(st.integers(0, 60), unique=True, max_size=40), st.integers(0, 9))
def test_runs_tell_the_position_of_every_cell(cells: list[int], begin: int) -> None:
    positions = range(begin, begin + len(cells))
    runs = runs_of(3, np.array(cells, np.int64), np.array(positions, np.int64))
    told = {first + k: position + k for _, first, count, position in runs for k in range(count)}
    assert told == dict(zip(cells, positions, strict=True))
    assert all(row == 3 and count > 0 for row, _, count, _ in runs)
