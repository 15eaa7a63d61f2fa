"""The soak detects failures: different answers, errors without an excuse, grown runners."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.soak.answers import Answer, differences, from_native, from_openai
from tests.soak.asking import RefusedError
from tests.soak.faults import excuse
from tests.soak.leaks import RUNNER_GROWTH_BYTES, grown_runners
from tests.soak.questions import CONTEXT, all_questions

RIGHT = Answer("abc", "length", 5, 3, logprobs=(-1.0, -2.0, -3.0), ids=tuple(range(8)), truncated=2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": "abd"},
        {"reason": "stop"},
        {"prompt_tokens": 6},
        {"tokens": 2},
        {"logprobs": (-1.0, -2.0, -3.0000000000000004)},
        {"ids": (0, 1, 2, 3, 4, 5, 6, 8)},
        {"truncated": 1},
        {"shifted": 4},
    ],
    ids=str,
)
def test_any_difference_makes_an_answer_wrong(wrong: dict[str, object]) -> None:
    assert differences(RIGHT, RIGHT, CONTEXT) == []
    assert len(differences(RIGHT, replace(RIGHT, **wrong), CONTEXT)) == 1


def test_values_not_requested_are_not_compared() -> None:
    assert differences(RIGHT, replace(RIGHT, logprobs=(), ids=()), CONTEXT) == []


def test_answer_is_compared_up_to_its_context_shift() -> None:
    shifted = Answer("x", "stop", 5, 20, ids=tuple(range(25)), shifted=7)
    after = replace(shifted, text="y", tokens=18, ids=(*range(11), 99))
    assert differences(shifted, after, context=10) == []
    before = replace(shifted, ids=(*range(10), 99))
    assert len(differences(shifted, before, context=10)) == 1


def test_stream_and_single_object_give_the_same_answer() -> None:
    end = {"done_reason": "stop", "prompt_eval_count": 4, "eval_count": 2, "context": [1, 2]}
    whole = from_native([{"response": "ab", **end}])
    assert whole == from_native([{"response": "a"}, {"response": "b"}, {"response": "", **end}])
    usage = {"prompt_tokens": 4, "completion_tokens": 2}
    message = {"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}], "usage": usage}
    deltas = [
        {"choices": [{"delta": {"content": "a"}}]},
        {"choices": [{"delta": {"content": "b"}}]},
        {"choices": [{"delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": usage},
    ]
    assert from_openai([message]) == from_openai(deltas)
    assert replace(whole, ids=()) == from_openai(deltas)


def test_errors_are_excused_only_shortly_after_a_kill() -> None:
    stopped = "model runner has unexpectedly stopped, this may be due to"
    killed = RefusedError(500, stopped)
    assert excuse(killed, began_s=100.0, kills_s=[99.0]) == "killed"
    assert excuse(RefusedError(200, stopped), began_s=100.0, kills_s=[101.0]) == "killed"
    assert excuse(killed, began_s=100.0, kills_s=[]) is None
    assert excuse(killed, began_s=100.0, kills_s=[10.0]) is None
    assert excuse(RefusedError(500, "internal error"), began_s=100.0, kills_s=[99.0]) is None
    assert excuse(RefusedError(404, stopped), began_s=100.0, kills_s=[99.0]) is None
    again = "the model crashed 3 times in a row and is not loaded again for another 4 s; the last time: it"
    assert excuse(RefusedError(503, again), began_s=100.0, kills_s=[10.0]) == "refused"
    assert excuse(RefusedError(503, again), began_s=400.0, kills_s=[10.0]) is None


def test_grown_runners_are_found_but_new_ones_are_not_compared() -> None:
    before = {1: 100, 2: 100}
    assert grown_runners(before, {1: 100 + RUNNER_GROWTH_BYTES, 3: 10**12}) is None
    assert grown_runners(before, {1: 101 + RUNNER_GROWTH_BYTES, 2: 100}) is not None


def test_question_names_are_unique() -> None:
    names = [question.name for question in all_questions()]
    assert len(set(names)) == len(names)
