"""Shares of sequences in a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.batch import Input
from puna.engine.batching import assemble, first_group, plan, whole_groups
from puna.engine.prefix_cache import PrefixEntry
from puna.engine.sequence import Generation, Sequence
from puna.engine.text import TextStream
from puna.ops import default_backend
from puna.options import Options
from puna.protocol import Generate
from puna.sample import Sampler


def sequence(
    number: int,
    waiting: int,
    *,
    generated: int = 0,
    held: int = 0,
    groups: dict[int, int] | None = None,
    spans: dict[int, int] | None = None,
    **request,
) -> Sequence:
    """Return a sequence of `waiting` inputs, with groups and spans, after `held` evaluated ones."""
    waiting_inputs = [
        Input(100 * number + i, same_batch=(groups or {}).get(i, 0), span=(spans or {}).get(i, 0))
        for i in range(waiting)
    ]
    made = Generation(
        request=Generate(id=number, prompt=[0], **request),
        sink=lambda event: None,
        inputs=[*[Input(0)] * held, *waiting_inputs],
        limit=None,
        keep=0,
        sampler=Sampler(Options(), 4, default_backend()),
        text=TextStream(),
        number=number,
    )
    made.entry = PrefixEntry(number, evaluated=held, running=True)
    made.generated = generated
    return made


def counts(sequences, budget: int, **how) -> dict[int, int]:
    return {batch_slice.sequence.id: batch_slice.count for batch_slice in plan(sequences, budget, **how)}


def test_every_decoding_sequence_is_in_every_batch() -> None:
    running = [sequence(0, 50), *(sequence(number, 1, generated=3) for number in (1, 2, 3))]
    assert counts(running, 0) == {1: 1, 2: 1, 3: 1}
    assert counts(running, 2) == {0: 2, 1: 1, 2: 1, 3: 1}


def test_the_oldest_prompt_gets_half_the_budget_and_the_shortest_the_rest() -> None:
    running = [sequence(0, 90), sequence(1, 50), sequence(2, 4), sequence(3, 30)]
    assert counts(running, 20) == {0: 10, 2: 4, 3: 6}


def test_the_oldest_prompt_gets_what_short_ones_leave() -> None:
    assert counts([sequence(0, 50), sequence(1, 3)], 20) == {0: 17, 1: 3}
    assert counts([sequence(0, 3), sequence(1, 50)], 20) == {0: 3, 1: 17}


def test_batch_requests_get_what_interactive_ones_leave() -> None:
    running = [sequence(0, 5, priority="batch"), sequence(1, 30), sequence(2, 30, priority="batch")]
    assert counts(running, 20) == {1: 20} | {}
    assert counts(running, 40) == {0: 5, 1: 30, 2: 5}


def test_a_single_token_prompt_is_a_prompt() -> None:
    assert not sequence(0, 1).decoding
    assert sequence(0, 1, generated=1).decoding
    # After a shift that evaluates the remaining inputs again, a sequence reads a prompt once more.
    assert not sequence(0, 7, generated=1).decoding


def test_a_prompt_pauses_where_a_waiting_request_shares_it() -> None:
    running = [sequence(0, 50, held=10), sequence(1, 50)]
    assert counts(running, 100, pauses={running[0]: 15}) == {0: 5, 1: 50}
    assert counts(running, 100, pauses={running[0]: 10}) == {0: 50, 1: 50}  # it is already past that


def test_inputs_of_a_group_are_not_separated() -> None:
    running = [sequence(0, 9, groups={2: 5})]
    for expected in (2, 6, 1):
        assert counts(running, 4) == {0: expected}
        running[0].entry.evaluated += expected


def test_the_oldest_group_may_exceed_the_budget() -> None:
    assert counts([sequence(0, 12, groups={0: 9}), sequence(1, 1, generated=1)], 4) == {0: 10, 1: 1}
    assert counts([sequence(0, 12), sequence(1, 12, groups={0: 9})], 4) == {0: 4}


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
@pytest.mark.parametrize("begin", [0, 7])
def test_whole_groups_are_cut_to_the_room_and_the_first_is_found(
    length: int, groups: dict[int, int], room: int, whole: int, first: int, begin: int
) -> None:
    inputs = [*[Input(0)] * begin, *(Input(0, same_batch=groups.get(i, 0)) for i in range(length))]
    assert whole_groups(inputs, begin, room) == whole
    assert first_group(inputs, begin) == first


def test_a_batch_holds_shares_at_their_positions_and_requests_logits_of_complete_ones() -> None:
    running = [sequence(0, 5, held=7), sequence(3, 1, generated=1, held=2), sequence(4, 2, held=1)]
    batch = assemble(plan(running, 4))
    assert batch.tokens.tolist() == [300, 400, 401, 0, 1]
    assert batch.positions.tolist() == [2, 1, 2, 7, 8]
    assert batch.sequences.tolist() == [3, 4, 4, 0, 0]
    assert batch.outputs is not None
    assert batch.outputs.tolist() == [0, 2]  # each samples from its own row


def test_outputs_are_none_if_all_rows_are_wanted() -> None:
    running = [sequence(number, 1, generated=1) for number in range(3)]
    assert assemble(plan(running, 4)).outputs is None


def test_scored_prompts_request_all_their_rows() -> None:
    running = [sequence(0, 5, prompt_logprobs=True), sequence(1, 3)]
    batch = assemble(plan(running, 7))
    assert batch.sequences.tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert batch.outputs is not None
    assert batch.outputs.tolist() == [2, 3, 4, 5, 6]


def test_spans_are_rows_of_the_batch() -> None:
    running = [sequence(0, 1, generated=1), sequence(1, 8, groups={2: 3}, spans={2: 4}, held=5)]
    assert assemble(plan(running, 20)).spans == [(3, 7)]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(1, 40))
def test_the_whole_budget_is_spent_while_there_is_work(waiting: list[int], budget: int) -> None:
    running = [sequence(number, count) for number, count in enumerate(waiting)]
    slices = plan(running, budget)
    assert sum(batch_slice.count for batch_slice in slices) == min(budget, sum(waiting))
    assert len({batch_slice.sequence.id for batch_slice in slices}) == len(slices)
    assert all(0 < batch_slice.count <= batch_slice.sequence.waiting for batch_slice in slices)
