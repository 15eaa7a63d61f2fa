"""The part of a conversation that need not be evaluated again, in later turns and repeated requests.

Every kind of cache is tested. A prompt shares what the cache remembers up to the first input that
differs, or to the last input but one, since the answer comes from the logits after the last.
"""

from __future__ import annotations

import pytest

from puna.model.load import LoadedModel
from tests.engine.runs import Run

#: Longer than the window, and several chunks.
PROMPT = [(7 * i) % 200 for i in range(50)]
NEW = [201, 202, 203]


def alone(model: LoadedModel, prompt: list[int], **settings) -> list[int]:
    return Run(model, context=128).one(prompt, **settings)[0]


def again(run: Run, prompt: list[int]) -> int:
    """Return how much of a second request comes from the cache, after checking its answer."""
    run.submit(1, prompt)
    run.finish()
    assert run.tokens(1) == alone(run.engine.loaded, prompt)
    return run.done(1).cached


@pytest.mark.parametrize("answer", [1, 5, 30])
def test_a_second_turn_evaluates_only_new_inputs(model: LoadedModel, answer: int) -> None:
    run = Run(model, context=128)
    tokens, _ = run.one(PROMPT, num_predict=answer)
    # The last generated token was sampled but never evaluated, so it is new.
    assert again(run, [*PROMPT, *tokens, *NEW]) == len(PROMPT) + answer - 1
    assert run.rows[-12] == 1 + len(NEW)


def test_a_finished_answer_is_wholly_reused(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    sampling = {"temperature": 1.5, "seed": 1, "num_predict": 30}
    expected = alone(model, PROMPT, **sampling)
    end = next(i for i, token in enumerate(expected) if token not in expected[:i] and i > 2)
    run = Run(model, context=128)
    with monkeypatch.context() as patch:
        patch.setattr(model.tokenizer, "eos_ids", frozenset({expected[end]}))
        tokens, done = run.one(PROMPT, ignore_eos=False, **sampling)
    assert (tokens, done.reason) == (expected[:end], "stop")
    assert again(run, [*PROMPT, *tokens, expected[end], *NEW]) == len(PROMPT) + len(tokens)
    assert run.rows[-12] == 1 + len(NEW)


@pytest.mark.parametrize("turns", [6])
def test_every_later_turn_evaluates_only_new_inputs(model: LoadedModel, turns: int) -> None:
    run = Run(model, context=128)
    conversation = PROMPT
    for turn in range(turns):
        run.submit(turn, conversation, num_predict=6)
        run.finish()
        assert run.tokens(turn) == alone(model, conversation, num_predict=6)
        assert run.done(turn).cached == (len(conversation) - 1 - len(NEW) if turn else 0)
        conversation = [*conversation, *run.tokens(turn), *NEW]


@pytest.mark.parametrize("answer", [1, 5, 30])
def test_a_repeated_prompt_evaluates_only_its_last_token(model: LoadedModel, answer: int) -> None:
    run = Run(model, context=128)
    run.one(PROMPT, num_predict=answer)
    for number in range(1, 4):
        run.submit(number, PROMPT, num_predict=answer)
        run.finish()
        assert run.done(number).cached == len(PROMPT) - 1
        assert run.tokens(number) == run.tokens(0)


@pytest.mark.parametrize("answer", [1, 5, 30])
def test_an_answer_sent_back_changed_is_new_from_its_beginning(model: LoadedModel, answer: int) -> None:
    """Resume where the client dropped the reasoning, or where a stop string was cut off."""
    run = Run(model, context=128)
    tokens, _ = run.one(PROMPT, num_predict=answer)
    changed = [(tokens[0] + 1) % 200, *NEW]
    assert again(run, [*PROMPT, *changed]) == len(PROMPT)


def test_concurrent_conversations_stay_correct_and_leak_nothing(model: LoadedModel) -> None:
    """Few cells and rows, so that checkpoints come and go, and prompts are sent again."""
    run = Run(model, context=128, parallel=3, remembered=4, capacity=300, batch_size=20)
    conversations = [[10 * number, *PROMPT[: 20 + 5 * number]] for number in range(4)]
    number = 0
    for turn in range(3):
        asked = {}
        for which, conversation in enumerate(conversations):
            for _ in range(1 + (turn + which) % 2):
                asked[number] = which
                run.submit(number, conversation, num_predict=5)
                number += 1
        run.finish()
        for request, which in asked.items():
            assert run.tokens(request) == alone(model, conversations[which], num_predict=5)
        for request, which in asked.items():
            conversations[which] = [*conversations[which][:60], *run.tokens(request), *NEW]
    assert run.leaked() == 0


def test_successive_requests_share_their_common_prefix(model: LoadedModel) -> None:
    """The second request reveals the common prefix, which is not evaluated again from then on."""
    run = Run(model, context=128)
    for number in range(5):
        prompt = [*PROMPT, *[100 + number] * 20]
        run.submit(number, prompt, num_predict=25)
        run.finish()
        assert run.tokens(number) == alone(model, prompt, num_predict=25)
    cached = [run.done(number).cached for number in range(5)]
    assert cached[0] == 0
    assert cached[2:] == [len(PROMPT)] * 3
