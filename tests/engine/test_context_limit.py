"""Positions, and behaviour at the end of the context."""

from __future__ import annotations

import pytest

from puna.batch import Input
from puna.engine.batching import shift_count, truncate
from puna.errors import ContextLengthError
from puna.model.load import LoadedModel
from tests.engine.runs import Run, Watched, let_it_say

PROMPT = [(7 * i) % 200 for i in range(40)]


def test_positions_continue_without_gaps_across_batches_and_after_a_stop(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Watched(tiny, batch_size=7)
    word, end = tiny.tokenizer.encode("hello", add_special=False)[0], ord("!")
    with monkeypatch.context() as patch:
        let_it_say(patch, tiny, [word, word, tiny.tokenizer.encode("!", add_special=False)[0]], 10)
        tokens, done = run.one(PROMPT[:10], stop=[chr(end)])
    assert (tokens, done.reason) == ([word, word], "stop")
    assert run.positions == [list(range(7)), [7, 8, 9], [10], [11]]
    run.batches.clear()
    run.submit(1, [*PROMPT[:10], word, word, 3, 4], num_predict=3)
    run.finish()
    assert run.positions == [[12, 13], [14], [15]]


@pytest.mark.parametrize(
    ("keep", "evaluated"), [(4, [0, 1, 2, 3, 6, 7, 8, 9]), (-1, [0, 1, 2, 3, 4, 5, 6, 9])]
)
def test_a_long_prompt_keeps_its_beginning_and_end(
    tiny: LoadedModel, keep: int, evaluated: list[int]
) -> None:
    run = Watched(tiny, context=8)
    run.submit(
        0, list(range(10)), num_keep=keep - tiny.tokenizer.add_bos if keep > 0 else keep, num_predict=1
    )
    run.finish()
    assert run.batches[0].tokens.tolist() == evaluated
    assert (run.done(0).truncated, run.done(0).prompt_eval_count) == (2, 8)


def test_a_prompt_that_must_not_be_cut_takes_no_slot(tiny: LoadedModel) -> None:
    run = Run(tiny, context=8, parallel=1)
    with pytest.raises(ContextLengthError, match="9 tokens > 8"):
        run.submit(0, list(range(9)), truncate=False)
    assert run.engine.active == 0
    run.submit(1, list(range(8)), truncate=False, num_predict=1)
    run.finish()
    assert run.done(1).eval_count == 1


def test_a_prompt_as_long_as_the_context_is_shifted_after_its_first_token(
    tiny: LoadedModel,
) -> None:
    run = Watched(tiny, context=8)
    _, done = run.one(PROMPT[:8], num_keep=1 - tiny.tokenizer.add_bos, num_predict=2)
    assert run.positions == [list(range(8)), [5]]
    assert done.shifted == 3


def test_without_shift_the_context_is_filled_to_its_end(tiny: LoadedModel) -> None:
    run = Watched(tiny, context=8)
    tokens, done = run.one(PROMPT[:5], shift=False, num_predict=100)
    assert (len(tokens), done.eval_count, done.reason) == (4, 4, "length")
    assert run.positions[-1] == [7]


def test_a_prompt_as_long_as_the_context_has_one_token_without_shift(tiny: LoadedModel) -> None:
    tokens, done = Run(tiny, context=8).one(PROMPT[:8], shift=False, num_predict=100)
    assert (len(tokens), done.eval_count, done.reason) == (1, 1, "length")


def test_a_full_context_does_not_split_groups(tiny: LoadedModel) -> None:
    prompt = [Input(token, same_batch=3 if i == 5 else 0) for i, token in enumerate(PROMPT[:9])]
    inputs, dropped = truncate(prompt, 8, 1)
    assert ([item.token for item in inputs], dropped) == (PROMPT[:1] + PROMPT[2:9], 1)
    run = Watched(tiny, context=8, batch_size=5)
    run.submit_inputs(0, inputs, num_keep=1, num_predict=6)
    run.finish()
    # The group, at 4 to 7 now, is evaluated in one batch; the first shift leaves it, the second drops it.
    assert run.positions == [[0, 1, 2, 3], [4, 5, 6, 7], [5], [6], [7], [4], [5]]
    assert run.done(0).shifted == 3 + 4


@pytest.mark.parametrize("streams", [1, 2])
def test_kept_inputs_are_evaluated_again_if_keys_cannot_shift(recurrent: LoadedModel, streams: int) -> None:
    context, keep, predict = 32, 4, 60
    run = Run(recurrent, context=context)
    for number in range(streams):
        run.submit(
            number,
            PROMPT[number : 10 + number],
            num_keep=keep - recurrent.tokenizer.add_bos,
            num_predict=predict,
        )
    run.finish()
    for number in range(streams):
        inputs, expected = PROMPT[number : 10 + number], []
        while len(expected) < predict:
            # Until the context is full, plus the token that no longer fits.
            more, _ = Run(recurrent, context=context).one(
                inputs, num_predict=min(context + 1 - len(inputs), predict - len(expected))
            )
            expected += more
            inputs = [*inputs, *more]
            dropped = shift_count([Input(0)] * context, context, keep)
            inputs = inputs[:keep] + inputs[keep + dropped :]
        assert run.tokens(number) == expected
        assert run.done(number).shifted == 3 * 14
    assert run.done(0).cached == 0


def test_others_continue_while_one_is_evaluated_again(recurrent: LoadedModel) -> None:
    run = Run(recurrent, context=64, batch_size=8)
    run.submit(0, PROMPT, num_keep=40, num_predict=40)
    for _ in range(20):
        run.engine.step()
    run.submit(1, PROMPT[5:10], num_predict=30)
    while len(run.engine.scheduler.running) < 2 or not run.engine.scheduler.running[1].decoding:
        run.engine.step()
    steps, again = len(run.rows), 0
    first, second = run.engine.scheduler.running
    while second.generated < 30:
        before = first.generated, second.generated
        run.engine.step()
        assert second.generated == before[1] + 1
        again += first.generated == before[0]
    assert again >= 4
    assert max(run.rows[steps:]) <= 8 + 1
    run.finish()
    assert run.done(0).shifted > 0


def test_every_shift_drops_as_much_as_the_first(tiny: LoadedModel) -> None:
    run = Watched(tiny, context=32)
    _, done = run.one(PROMPT[:10], num_keep=4 - tiny.tokenizer.add_bos, num_predict=100)
    assert shift_count([Input(0)] * 32, 32, 4) == 14
    assert done.shifted == 14 * 6
    assert max(max(positions) for positions in run.positions) == 31
    assert [positions[0] for positions in run.positions[1:]].count(32 - 14) == 1 + 6  # once on the way there


def test_num_keep_as_long_as_the_context_leaves_room_for_one(tiny: LoadedModel) -> None:
    run = Watched(tiny, context=8)
    tokens, done = run.one(PROMPT[:8], num_keep=1000, num_predict=5)
    assert run.positions == [list(range(8)), [7], [7], [7], [7]]
    assert (len(tokens), done.shifted) == (5, 4)


@pytest.mark.parametrize(("kind", "rows"), [("plain", [10, 1]), ("recurrent", [10, 7])])
def test_a_shift_keeps_six_of_ten_whether_moved_or_evaluated_again(
    tiny: LoadedModel, recurrent: LoadedModel, kind: str, rows: list[int]
) -> None:
    model = tiny if kind == "plain" else recurrent
    run = Run(model, context=10)
    _, done = run.one(PROMPT[:10], num_keep=2 - model.tokenizer.add_bos, num_predict=2)
    assert (run.rows, done.shifted) == (rows, 4)
