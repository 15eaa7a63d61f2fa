"""Who gets how much of a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.engine.batching import assemble, first_group, plan, whole_groups
from puna.engine.events import Generate
from puna.engine.sequence import Sequence
from puna.engine.slots import Slot
from puna.engine.text import TextStream
from puna.model.input import Input
from puna.options import Options
from puna.sample import Sampler


def sequence(
    number: int, waiting: int, *, generated: int = 0, held: int = 0, groups: dict[int, int] | None = None
):
    made = Sequence(
        request=Generate(id=number, prompt=[0]),
        sink=lambda event: None,
        prompt=[],
        context=100,
        limit=None,
        keep=0,
        sampler=Sampler(Options(), 4),
        text=TextStream(),
    )
    made.slot = Slot(number, [Input(0)] * held, busy=True)
    made.generated = generated
    made.waiting = [Input(100 * number + i, same_batch=(groups or {}).get(i, 0)) for i in range(waiting)]
    return made


def counts(sequences, budget: int, first: int = 0) -> list[tuple[int, int]]:
    return [(share.sequence.id, share.count) for share in plan(sequences, budget, first)]


def test_generating_sequences_come_first_and_prompts_share_the_rest() -> None:
    running = [sequence(0, 50), sequence(1, 1, generated=3), sequence(2, 50)]
    assert counts(running, 21) == [(1, 1), (0, 10), (2, 10)]


def test_a_short_prompt_leaves_its_part_to_the_long_one() -> None:
    assert counts([sequence(0, 3), sequence(1, 50)], 20) == [(0, 3), (1, 17)]


def test_the_turn_goes_round() -> None:
    running = [sequence(0, 9), sequence(1, 9), sequence(2, 9)]
    assert counts(running, 1, 0) == [(0, 1)]
    assert counts(running, 1, 2) == [(2, 1)]


def test_a_single_token_prompt_is_a_prompt() -> None:
    assert not sequence(0, 1).decoding
    assert sequence(0, 1, generated=1).decoding
    # After a shift that had to evaluate again what stays, a sequence reads a prompt once more.
    assert not sequence(0, 7, generated=1).decoding


def test_inputs_that_belong_together_are_not_torn_apart() -> None:
    running = [sequence(0, 12, groups={2: 5})]
    assert counts(running, 6) == [(0, 2)]
    del running[0].waiting[:2]
    assert counts(running, 6) == [(0, 6)]


def test_a_group_beyond_the_budget_gets_a_batch_of_its_own() -> None:
    assert counts([sequence(0, 12, groups={0: 9})], 4) == [(0, 10)]
    assert counts([sequence(0, 12, groups={0: 9}), sequence(1, 1, generated=1)], 4) == [(1, 1)]


@pytest.mark.parametrize(
    ("length", "groups", "room", "whole", "first"),
    [
        (5, {}, 3, 3, 1),
        (5, {0: 2}, 2, 0, 3),
        (5, {0: 2}, 3, 3, 3),
        (8, {0: 2, 2: 3}, 5, 0, 6),
        (8, {0: 2, 2: 3}, 6, 6, 6),
        (3, {1: 9}, 3, 1, 1),
    ],
)
def test_groups(length: int, groups: dict[int, int], room: int, whole: int, first: int) -> None:
    waiting = [Input(0, same_batch=groups.get(i, 0)) for i in range(length)]
    assert whole_groups(waiting, room) == whole
    assert first_group(waiting) == first


def test_a_batch_holds_each_share_at_its_positions_and_wants_logits_of_complete_ones() -> None:
    running = [sequence(0, 5, held=7), sequence(3, 1, generated=1, held=2)]
    batch = assemble(plan(running, 4))
    assert batch.tokens.tolist() == [300, 0, 1, 2]
    assert batch.positions.tolist() == [2, 7, 8, 9]
    assert batch.sequences.tolist() == [3, 0, 0, 0]
    assert batch.outputs is not None
    assert batch.outputs.tolist() == [0]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 40), st.integers(0, 7))
def test_the_budget_is_spent_as_far_as_there_is_work(waiting: list[int], budget: int, first: int) -> None:
    running = [sequence(number, count, generated=number % 2) for number, count in enumerate(waiting)]
    shares = plan(running, budget, first % len(running))
    assert sum(share.count for share in shares) == min(budget, sum(waiting))
    assert len({share.sequence.id for share in shares}) == len(shares)
