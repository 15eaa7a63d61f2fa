"""Decisions to draft, with made-up times, so that nothing depends on the machine."""

from __future__ import annotations

import random
from itertools import product

import pytest

from puna.engine.drafting.payoff import Candidate, Cost, StepEstimate


def cost_of(*added: float) -> Cost:
    """Return a cost whose n-th draft token raises the time of a step to the n-th of `added` beyond 1."""
    cost = Cost()
    for drafts, time in enumerate([0.0, *added]):
        for _ in range(9):
            cost.measured(drafts, 1 + time)
    return cost


def rate(counts: list[int], candidates: list[Candidate], streams: int, row: float) -> float:
    """Return the tokens per step time, by definition."""
    tokens: float = streams
    for count, candidate in zip(counts, candidates, strict=True):
        tokens += sum(candidate.acceptance**depth for depth in range(1, count + 1))
    return tokens / (1 + row * sum(counts))


@pytest.mark.parametrize("row", [0.02, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("acceptance", [(0.9,), (0.5,), (0.1,), (0.9, 0.2), (0.7, 0.6, 0.05)])
def test_chosen_drafts_are_nearly_optimal(acceptance: tuple[float, ...], row: float) -> None:
    candidates = [Candidate(acceptance, 4) for acceptance in acceptance]
    counts = StepEstimate(cost_of(row), len(acceptance)).add(candidates)
    tried = [list(other) for other in product(range(5), repeat=len(acceptance))]
    best = max(rate(other, candidates, len(acceptance), row) for other in tried)
    found = rate(counts, candidates, len(acceptance), row)
    assert found >= rate([0] * len(acceptance), candidates, len(acceptance), row)
    assert found >= 0.9 * best


def test_the_price_of_deeper_drafts_is_shared_by_all() -> None:
    one, many = [Candidate(0.6, 8)], [Candidate(0.6, 8)] * 6
    assert StepEstimate(cost_of(0.02), 1).add(one, pass_cost=0.55) == [0]
    assert StepEstimate(cost_of(0.02), 6).add(many, pass_cost=0.01) != [0] * 6


def test_no_candidate_drafts_more_than_it_offers() -> None:
    candidates = [Candidate(0.99, 2), Candidate(0.99, 0), Candidate(0.99, 5)]
    assert StepEstimate(cost_of(0.01), 3).add(candidates) == [2, 0, 5]
    assert StepEstimate(cost_of(0.01), 1).add([]) == []


def test_a_step_stays_within_its_time_limit() -> None:
    estimate = StepEstimate(cost_of(0.03), 2)
    assert estimate.add([Candidate(0.99, 8)], longest=1.05) == [1]
    assert estimate.time == pytest.approx(1.03)


def test_the_cost_of_a_row_is_estimated_despite_interruptions() -> None:
    dice, cost = random.Random(1), Cost()
    for _ in range(200):
        drafts = dice.choice([0, 1, 4, 8])
        interrupted = 0.05 if dice.random() < 0.2 else 0.0
        cost.measured(drafts, 0.02 * (1 + 0.1 * drafts) * dice.uniform(0.97, 1.1) + interrupted)
    assert cost.step_s == pytest.approx(0.02, rel=0.1)
    for drafts in (1, 2, 4, 6, 8, 12):
        assert cost.of(drafts) == pytest.approx(0.1 * drafts, rel=0.5, abs=0.05)


def test_a_first_row_that_costs_most_is_worth_it_only_with_others() -> None:
    cost = cost_of(0.6, 0.62, 0.64, 0.66)
    assert StepEstimate(cost, 1).add([Candidate(0.9, 1)]) == [1]
    assert StepEstimate(cost, 1).add([Candidate(0.7, 1)]) == [0]
    assert StepEstimate(cost, 1).add([Candidate(0.7, 4)]) == [4]
    assert StepEstimate(cost, 4).add([Candidate(0.9, 1), *[Candidate(0.2, 4)] * 3]) == [0] * 4


def test_rows_of_a_group_are_filled_but_no_other_is_begun() -> None:
    """Kernels compute four rows at a time."""
    cost = cost_of(0.02, 0.04, 0.06, 1.2, 1.22)
    assert StepEstimate(cost, 1).add([Candidate(0.8, 8)]) == [3]


def test_what_is_forced_counts_as_rows_of_the_step() -> None:
    estimate = StepEstimate(cost_of(0.02, 0.04, 0.06, 1.2), 1)
    assert estimate.add([Candidate(1.0, 3)]) == [3]
    assert estimate.add([Candidate(0.9, 3)]) == [0]


def test_costs_are_unknown_before_plain_steps_and_long_after_them() -> None:
    cost = Cost()
    for _ in range(20):
        cost.measured(4, 0.03)
    assert not cost.known
    for _ in range(4):
        cost.measured(0, 0.02)
    assert cost.known
    for _ in range(32):
        cost.measured(4, 0.03)
    assert not cost.known
