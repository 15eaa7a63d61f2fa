"""The time that drafts lose and gain, in steps without drafts, at set prices: no clock decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from puna.engine.batching import Draft
from puna.engine.drafting.payoff import Allowance
from puna.engine.drafting.speculation import GENERATED, MATCH_LENGTHS, MAX_DRAFT_TOKENS, Speculation, _Offer
from puna.engine.sequence import Drafting

TOKENS = 192

#: Whether the draft of the n-th token of an answer is right.
Right = Callable[[int], bool]
PATTERNS: dict[str, Right] = {
    "always": lambda place: True,
    "first half": lambda place: place < TOKENS // 2,
    "alternating": lambda place: place % 2 == 0,
    "four of five": lambda place: place % 5 != 0,
}
PRICES = [(0.02, 0.0), (0.125, 0.0), (0.5, 0.0), (1.0, 0.0), (0.1, 0.1), (0.25, 0.35)]


def never(place: int) -> bool:
    return False


@dataclass
class Heads:
    """A drafter whose passes cost a set share of a step."""

    cost: float
    mode = "mtp"

    def pass_cost(self, step_s: float) -> float:
        return self.cost

    def catch_up_cost(self, sequence: Any, step_s: float) -> float:
        return 0.0


class World:
    """Answers whose drafts follow a pattern: a row costs `row` of a step, and a pass of heads `passes`."""

    def __init__(self, row: float, passes: float) -> None:
        self._row, self._passes = row, passes
        drafter = cast("Any", Heads(passes) if passes else None)
        self._speculation = Speculation(cast("Any", None), 4096, drafter=drafter)
        for streams in (1, 4):  # costs are known
            for drafts in [0, 1] * 5:
                self._speculation._costs[streams].measured(drafts, 1 + row * drafts)

    def time(self, right: Right, *, streams: int = 1, tokens: int = TOKENS) -> float:
        """Return the steps and the price of drafts, in which `streams` answers of `tokens` are generated."""
        speculation, source = self._speculation, GENERATED if self._passes else MATCH_LENGTHS[0]
        places, time = [0] * streams, 0.0
        answers = [
            cast("Any", SimpleNamespace(drafting=Drafting("any", dict(speculation._acceptance))))
            for _ in places
        ]
        while running := [index for index in range(streams) if places[index] < tokens]:
            cost = speculation._costs[len(running)]
            offers = [
                _Offer(cast("Any", SimpleNamespace(sequence=answers[index])), drafting, source, most, [])
                for index in running
                if (most := min(MAX_DRAFT_TOKENS, tokens - places[index] - 1)) > 0
                and (drafting := answers[index].drafting)
            ]
            counts = dict.fromkeys(running, 0)
            if cost.known and offers:
                for offer, count in speculation._choose(offers, len(running), cost, float("inf"))[0]:
                    counts[answers.index(offer.batch_slice.sequence)] = count
            step = 1 + self._row * sum(counts.values())
            cost.measured(sum(counts.values()), step)
            time += step + self._passes * max(counts.values())
            for index, count in counts.items():
                wrong = (n for n in range(count) if not right(places[index] + 1 + n))
                accepted = next(wrong, count)
                if count:
                    answers[index].drafting.drafted += count
                    draft = Draft(source, [0] * count)
                    speculation.record_outcome(answers[index], draft, accepted, ended=False)
                places[index] += 1 + accepted
        return time


@pytest.fixture(params=PRICES, ids=str)
def world(request: pytest.FixtureRequest) -> World:
    return World(*request.param)


@pytest.mark.parametrize("streams", [1, 4])
def test_drafts_that_are_never_right_take_three_percent_at_most(world: World, streams: int) -> None:
    assert TOKENS < world.time(never, streams=streams) <= TOKENS / 0.98


def test_many_short_answers_lose_no_more_than_a_long_one(world: World) -> None:
    """Answers share an allowance."""
    assert sum(world.time(never, tokens=12) for _ in range(40)) <= 480 * 1.01 + 1.25


def test_drafts_that_were_right_may_lose_little_more_when_they_are_wrong(world: World) -> None:
    assert world.time(PATTERNS["always"]) <= TOKENS + 1.25
    assert world.time(never) <= TOKENS * 1.01 + 4


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("prices", PRICES, ids=str)
def test_drafts_that_are_right_gain_as_much_as_without_an_allowance(
    pattern: str, prices: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = World(*prices).time(PATTERNS[pattern])
    unlimited = property(lambda allowance: 1e9, lambda allowance, left: None)
    monkeypatch.setattr(Allowance, "left", unlimited, raising=False)
    monkeypatch.setattr(Allowance, "may_try", lambda allowance, price, first: False)
    assert limited <= World(*prices).time(PATTERNS[pattern]) * 1.02 + 1.25


def test_answers_draft_again_after_others_whose_drafts_were_wrong(world: World) -> None:
    fresh = world.time(PATTERNS["always"])
    for _ in range(4):
        world.time(never)
    first, *_, last = [world.time(PATTERNS["always"]) for _ in range(4)]
    assert first < (fresh + TOKENS) / 2 or fresh > 0.9 * TOKENS
    assert last <= fresh * 1.02 + 1


def test_drafts_that_become_right_are_noticed() -> None:
    world = World(0.125, 0.0)
    assert world.time(lambda place: place >= TOKENS // 2) < 0.75 * TOKENS
