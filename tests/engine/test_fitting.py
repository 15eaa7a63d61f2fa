"""Cutting prompts and dropping old inputs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.batch import Input
from puna.engine.batching import group_begin, shift_count, truncate
from puna.errors import ContextLengthError


def inputs(length: int, groups: dict[int, int] | None = None) -> list[Input]:
    return [Input(i, same_batch=(groups or {}).get(i, 0)) for i in range(length)]


@pytest.mark.parametrize(
    ("context", "keep", "length", "groups", "expected"),
    [
        (2048, 5, 2048, {}, 1021),
        (2048, 2047, 2048, {}, 1),
        (2048, 0, 2048, {}, 1024),
        (2048, 5, 5000, {}, 3973),
        (2048, 2047, 5000, {}, 2953),
        (2048, 5, 512, {}, 0),
        (2048, 5, 2048, {1024: 511}, 1531),
        (2048, 5, 2048, {10: 511}, 1021),
        (32, 0, 32, {0: 9, 10: 9, 20: 9, 30: 9}, 20),
        (32, 0, 32, {4: 9, 8: 9, 14: 9}, 24),
        (8, 1, 8, {}, 3),
        (10, 2, 10, {}, 4),
    ],
)
def test_a_shift_drops_whole_groups_after_num_keep(
    context: int, keep: int, length: int, groups: dict[int, int], expected: int
) -> None:
    assert shift_count(inputs(length, groups), context, keep) == expected


def test_a_prompt_that_fits_is_unchanged() -> None:
    prompt = inputs(8)
    assert truncate(prompt, 8, 2) == (prompt, 0)


def test_a_long_prompt_keeps_its_beginning_and_its_end() -> None:
    cut, dropped = truncate(inputs(10), 6, 2)
    assert [item.token for item in cut] == [0, 1, 6, 7, 8, 9]
    assert dropped == 4


def test_groups_are_dropped_whole() -> None:
    cut, dropped = truncate(inputs(12, {4: 3}), 8, 2)
    assert [item.token for item in cut] == [0, 1, 8, 9, 10, 11]
    assert dropped == 6


def test_a_group_across_num_keep_is_refused() -> None:
    for keep in (2, 3):
        with pytest.raises(ContextLengthError, match="an image lies across num_keep"):
            truncate(inputs(12, {1: 3}), 8, keep)


def test_nothing_left_after_the_cut_is_refused() -> None:
    with pytest.raises(ContextLengthError, match="nothing would be left"):
        truncate(inputs(12, {3: 8}), 8, 2)


@given(st.integers(1, 60), st.integers(1, 40), st.data())
def test_a_cut_prompt_fits_and_consists_of_its_head_and_tail(
    length: int, context: int, data: st.DataObject
) -> None:
    keep = data.draw(st.integers(0, context - 1))
    prompt = inputs(length)
    cut, dropped = truncate(prompt, context, keep)
    assert len(cut) == min(length, context)
    assert dropped == length - len(cut)
    if dropped:
        assert cut == prompt[:keep] + prompt[length - (context - keep) :]


@pytest.mark.parametrize(
    ("groups", "position", "begin"),
    [
        ({}, 5, 5),
        ({2: 3}, 2, 2),
        ({2: 3}, 3, 2),
        ({2: 3}, 5, 2),
        ({2: 3}, 6, 6),
        ({2: 3, 4: 4}, 7, 2),  # they overlap
        ({2: 3, 6: 2}, 8, 6),
        ({}, 0, 0),
    ],
)
def test_the_beginning_of_a_group_is_found(groups: dict[int, int], position: int, begin: int) -> None:
    assert group_begin(inputs(12, groups), position) == begin
