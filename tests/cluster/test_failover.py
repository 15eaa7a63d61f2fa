"""Deliveries: of several runs, the client sees one answer."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from puna.chat.answers.parts import CallDelta
from puna.cluster.failover import Delivery, GenerateEvent
from puna.options import Options
from puna.protocol import Chunk, Done, Evaluated, Generate, Prompted, Scored, TokenLogprob


def logprob(token: int) -> TokenLogprob:
    return TokenLogprob(str(token), -0.5, [], [], token)


def done(sample: int = 0) -> Done:
    return Done(
        id=1,
        reason="stop",
        prompt_eval_count=3,
        prompt_eval_duration=1,
        eval_count=4,
        eval_duration=1,
        sample=sample,
    )


#: An answer token by token: thinking, text, and two calls.
THINKING, TEXT = "hm, well... ", "The answer is 42, for sure."
CALLS = [CallDelta(0, "a", "look"), CallDelta(0, arguments='{"q": 1}'), CallDelta(1, "b", "see", "{}")]


def answer(cuts: list[int]) -> list[Chunk]:
    """Return chunks of the same answer, cut at some of its characters and calls."""
    pieces: list[Chunk] = []
    items: list[tuple[str, str, list[CallDelta]]] = [
        *((each, "", []) for each in THINKING),
        *(("", each, []) for each in TEXT),
        *(("", "", [each]) for each in CALLS),
    ]
    bounds = sorted({0, len(items), *(cut % len(items) for cut in cuts)})
    for begin, end in pairwise(bounds):
        part = items[begin:end]
        pieces.append(
            Chunk(
                id=1,
                thinking="".join(each[0] for each in part),
                text="".join(each[1] for each in part),
                calls=[call for each in part for call in each[2]],
                tokens=list(range(begin, end)),
                logprobs=[logprob(token) for token in range(begin, end)],
            )
        )
    return pieces


def merged(
    events: list[GenerateEvent],
) -> tuple[str, str, list[tuple[int, str, str, str]], list[int], list[int]]:
    """Return what a client has in the end."""
    chunks = [event for event in events if isinstance(event, Chunk)]
    calls: dict[int, tuple[str, str, str]] = {}
    for delta in (delta for chunk in chunks for delta in chunk.calls):
        id, name, arguments = calls.get(delta.index, ("", "", ""))
        calls[delta.index] = id + delta.id, name + delta.name, arguments + delta.arguments
    return (
        "".join(chunk.thinking for chunk in chunks),
        "".join(chunk.text for chunk in chunks),
        [(index, *call) for index, call in sorted(calls.items())],
        [token for chunk in chunks for token in chunk.tokens],
        [one.id for chunk in chunks for one in chunk.logprobs],
    )


CUTS = st.lists(st.integers(0, 100), max_size=12)


@given(st.lists(st.tuples(CUTS, st.integers(0, 13)), max_size=4), CUTS)
def test_runs_that_end_anywhere_make_one_answer(
    interrupted: list[tuple[list[int], int]], last: list[int]
) -> None:
    delivery = Delivery(Generate())
    seen: list[GenerateEvent] = []

    def run(chunks: list[Chunk]) -> None:
        repeated = delivery.run().resumed
        sent = [token for event in seen if isinstance(event, Chunk) for token in event.tokens]
        assert (repeated or [[]]) == [sent]
        events = [
            Prompted(id=1, text="p", tokens=[1]),
            Evaluated(id=1, done=1, total=1, cached=0, duration=1),
        ]
        seen.extend(new for event in [*events, *chunks] if (new := delivery.new(event)) is not None)

    for cuts, count in interrupted:
        run(answer(cuts)[:count])
    run(answer(last))
    seen.append(done())
    assert merged(seen) == merged([*answer([]), done()])
    assert sum(isinstance(event, Prompted) for event in seen) == 1


def test_samples_that_have_ended_are_not_sent_again() -> None:
    delivery = Delivery(Generate(samples=2))
    delivery.run()
    first = Chunk(id=1, text="a", tokens=[1], sample=1)
    assert delivery.new(first) == first
    assert delivery.new(done(1)) == done(1)
    assert delivery.run().resumed == [[], [1]]
    assert delivery.new(first) is None
    assert delivery.new(done(1)) is None
    other = Chunk(id=1, text="b", tokens=[2], sample=0)
    assert delivery.new(other) == other
    assert delivery.new(done(0)) == done(0)


def test_scores_of_a_prompt_are_sent_once() -> None:
    delivery = Delivery(Generate(prompt_logprobs=True))
    delivery.run()
    delivery.new(Scored(id=1, tokens=[1, 2], logprobs=[None, logprob(2)]))
    delivery.run()
    new = delivery.new(Scored(id=1, tokens=[1, 2, 3], logprobs=[None, logprob(2), logprob(3)]))
    assert new == Scored(id=1, tokens=[3], logprobs=[logprob(3)])


@pytest.mark.parametrize("seed", [-1, 7])
def test_all_runs_have_one_seed(seed: int) -> None:
    delivery = Delivery(replace(Generate(), options=Options(seed=seed)))
    seeds = {delivery.run().options.seed for _ in range(3)}
    assert len(seeds) == 1
    assert min(seeds) >= 0
    assert seed == -1 or seeds == {7}
