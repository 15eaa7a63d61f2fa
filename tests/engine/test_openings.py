"""The end of a prompt that begins the answer, such as `<think>`, may be missing in the next turn's prompt."""

from __future__ import annotations

import pytest

from puna.engine.requests import FittedPrompt
from puna.model.load import LoadedModel
from tests.engine.runs import Run, _message

PROMPT = [(7 * i) % 200 for i in range(50)]
OPENING = [211, 212, 213]


def turn(run: Run, number: int, prompt: list[int], opening: int, answer: int = 20) -> int:
    """Answer a prompt that ends with `opening` tokens of the answer; return how many came from the cache."""
    request = _message(number, prompt, {"num_predict": answer})
    run.engine.submit(request, run._sink(number), FittedPrompt(prompt, opening=opening))
    run.finish()
    return run.done(number).cached


@pytest.mark.parametrize("answer", [1, 20])
def test_a_prompt_is_resumed_before_an_opening_that_the_next_one_lacks(
    model: LoadedModel, answer: int
) -> None:
    run = Run(model, context=256)
    conversation = list(PROMPT)
    before = 0
    for number in range(4):
        cached = turn(run, number, [*conversation, *OPENING], len(OPENING), answer)
        assert cached == before
        before = len(conversation)
        conversation += [100 + number, *range(10 + number, 20 + number)]  # the answer without its thinking


def test_an_opening_changes_no_answer(model: LoadedModel) -> None:
    prompt = [*PROMPT, *OPENING]
    run, plain = Run(model, context=256), Run(model, context=256)
    turn(run, 0, prompt, len(OPENING))
    turn(plain, 0, prompt, 0)
    assert run.tokens(0) == plain.tokens(0)


def test_another_conversation_is_resumed_where_its_first_message_begins(model: LoadedModel) -> None:
    front = [(3 * i) % 200 for i in range(40)]
    run = Run(model, context=256)
    for number in range(3):
        prompt = [*front, *[(11 * i + number) % 200 for i in range(50)]]
        request = _message(number, prompt, {"num_predict": 20})
        run.engine.submit(request, run._sink(number), FittedPrompt(prompt, front=len(front)))
        run.finish()
        assert run.done(number).cached == (len(front) if number else 0)


@pytest.mark.parametrize("answer", [1, 20])
def test_a_prompt_is_resumed_before_a_last_message_that_the_next_one_lacks(
    model: LoadedModel, answer: int
) -> None:
    run = Run(model, context=128)
    conversation = PROMPT[:36]
    before = 0
    for number in range(3):
        reminder = [(number * 13 + i) % 200 for i in range(4)]
        prompt = [*conversation, 220, *reminder]
        request = _message(number, prompt, {"num_predict": answer})
        run.engine.submit(request, run._sink(number), FittedPrompt(prompt, ending=1 + len(reminder)))
        run.finish()
        assert run.done(number).cached == before
        before = len(conversation)
        conversation += [221 + number, *[(number * 17 + i) % 200 for i in range(32)]]


def test_a_message_added_to_the_earlier_prompt_takes_no_step_of_its_own(model: LoadedModel) -> None:
    """Chats that only grow resume at the end of what was there, and the last message is all that is new."""
    run, plain = Run(model, context=256), Run(model, context=256)
    for each, ending in ((run, 20), (plain, 0)):
        for number, prompt in enumerate((PROMPT, [*PROMPT, 220, *range(20)])):
            request = _message(number, prompt, {"num_predict": 1})
            fitted = FittedPrompt(prompt, ending=ending if number else 0)
            each.engine.submit(request, each._sink(number), fitted)
            each.finish()
    assert run.rows == plain.rows
