"""The strength of adapters by row."""

from __future__ import annotations

import numpy as np
import pytest

from puna.nn.low_rank import RowScales, StagesRowScales
from puna.ops.reference import Reference

FIRST, SECOND = Reference(), Reference()


def test_linears_see_the_scales_of_the_rows_they_are_given() -> None:
    scales = RowScales(FIRST)
    scales.count = 3
    scales.begin({2: np.array([0.5, 0, 2, 0], np.float32)}, outputs=np.array([0, 2]))
    assert scales.table(4).tolist() == [[0, 0, 0.5], [0, 0, 0], [0, 0, 2], [0, 0, 0]]
    assert scales.table(2).tolist() == [[0, 0, 0.5], [0, 0, 2]]
    with scales.standing_for(np.array([2, 2, 1])):
        assert scales.table(3)[:, 2].tolist() == [2, 2, 0]
    assert scales.table(4) is scales.table(4)
    assert scales.takes_part([2])
    assert not scales.takes_part([0, 1])
    with pytest.raises(ValueError, match="do not say which 3 rows these are"):
        scales.table(3)


def test_recordings_have_scales_for_all_of_their_rows_only() -> None:
    stages = [RowScales(FIRST), RowScales(SECOND)]
    scales = StagesRowScales(stages)
    scales.count = 1
    scales.begin({0: np.ones(2, np.float32)}, outputs=None)
    table = np.zeros((2, 1), np.float32)
    with scales.recorded(FIRST, table):
        assert stages[0].table(2) is table
        assert stages[1].table(2).tolist() == [[1], [1]]
        with pytest.raises(ValueError, match="a recorded pass of 2 rows has no scales for 1 others"):
            stages[0].table(1)
        with stages[0].standing_for(np.array([0, 1])), pytest.raises(ValueError, match="no scales"):
            stages[0].table(2)
    assert stages[0].table(2).tolist() == [[1], [1]]
