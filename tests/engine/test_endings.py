"""Ends of generations, their counts, and failures, which must not affect other requests."""

from __future__ import annotations

import pytest

from puna.model.load import LoadedModel
from puna.options import Options
from puna.protocol import Chunk, Event, Generate
from tests.engine.runs import Run, let_it_say

PROMPT = [(7 * i) % 200 for i in range(10)]


def ids(tiny: LoadedModel, *texts: str) -> list[int]:
    """Return the tokens of `texts`, each one token or several."""
    return [token for text in texts for token in tiny.tokenizer.encode(text, add_special=False)]


def end_of(tiny: LoadedModel) -> int:
    return min(tiny.tokenizer.eos_ids)


# --- limits and end tokens -------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 3])
def test_an_answer_has_num_predict_tokens(tiny: LoadedModel, count: int) -> None:
    run = Run(tiny)
    tokens, done = run.one(PROMPT, num_predict=count)
    assert (len(tokens), done.eval_count, done.reason) == (count, count, "length")
    assert run.rows == [len(PROMPT)] + [1] * (count - 1)  # nothing beyond the answer is computed


@pytest.mark.parametrize("wanted", [-1, -2, 100_000])
def test_an_answer_has_at_most_ten_contexts_of_tokens(tiny: LoadedModel, wanted: int) -> None:
    tokens, done = Run(tiny, context=16).one(PROMPT, num_predict=wanted)
    assert (len(tokens), done.reason) == (160, "length")


def test_an_end_token_on_the_limit_is_an_end(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    let_it_say(monkeypatch, tiny, [*ids(tiny, "hello", " world"), end_of(tiny)], len(PROMPT))
    tokens, done = Run(tiny).one(PROMPT, num_predict=3, ignore_eos=False)
    assert (tokens, done.eval_count, done.reason) == (ids(tiny, "hello", " world"), 3, "stop")


def test_a_stop_string_on_the_limit_is_a_stop(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    let_it_say(monkeypatch, tiny, ids(tiny, "hello", " world", " time"), len(PROMPT))
    run = Run(tiny)
    _, done = run.one(PROMPT, num_predict=3, stop=["ld time"])
    assert (run.text(0), done.reason, done.stop) == ("hello wor", "stop", "ld time")


@pytest.mark.parametrize("limit", [-2, -1, 0, 81])
def test_no_answer_is_longer_than_ten_contexts(tiny: LoadedModel, limit: int) -> None:
    _, done = Run(tiny, context=8).one(PROMPT[:4], num_predict=limit)
    assert (done.eval_count, done.reason) == (80, "length")


def test_any_of_several_end_tokens_ends_an_answer(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(tiny.tokenizer.eos_ids) == 2
    for end in tiny.tokenizer.eos_ids:
        with monkeypatch.context() as patch:
            let_it_say(patch, tiny, [*ids(tiny, "hello"), end], len(PROMPT))
            tokens, done = Run(tiny).one(PROMPT, ignore_eos=False)
        assert (tokens, done.eval_count, done.reason) == (ids(tiny, "hello"), 2, "stop")


def test_held_text_is_sent_at_the_end(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    let_it_say(monkeypatch, tiny, [*ids(tiny, "w", "o"), end_of(tiny)], len(PROMPT))
    run = Run(tiny)
    tokens, done = run.one(PROMPT, stop=["world"], ignore_eos=False)
    assert (run.text(0), tokens, done.reason, done.stop) == ("wo", ids(tiny, "w", "o"), "stop", None)


@pytest.mark.parametrize(
    ("answer", "stop", "shown", "remembered"),
    [
        ([" the", "w", "o", "r", "l", "d"], "world", " the", 1),
        (["hello", " story"], "ory", "hello st", 1),
        (["hello", " the", "r", "e", "!"], "there!", "hello ", 1),
    ],
    ids=["159-whole", "160-half-of-the-newest", "161-half-of-an-older"],
)
def test_the_next_turn_after_a_cut_answer_reuses_the_shared_prefix(
    tiny: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    answer: list[str],
    stop: str,
    shown: str,
    remembered: int,
) -> None:
    run = Run(tiny)
    with monkeypatch.context() as patch:
        let_it_say(patch, tiny, ids(tiny, *answer), len(PROMPT))
        _, done = run.one(PROMPT, stop=[stop])
    assert (run.text(0), done.stop) == (shown, stop)
    turn = [*PROMPT, *ids(tiny, shown), *ids(tiny, "once")]
    run.submit(1, turn)
    run.finish()
    assert run.done(1).cached == len(PROMPT) + remembered
    assert run.tokens(1) == Run(tiny).one(turn)[0]
    assert run.leaked() == 0


def test_an_answer_of_equal_tokens_is_sent_whole(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    let_it_say(monkeypatch, tiny, ids(tiny, "hello"), len(PROMPT))
    run = Run(tiny)
    _, done = run.one(PROMPT, num_predict=45)
    chunks = [event.text for event in run.events[0] if isinstance(event, Chunk)]
    assert (chunks, done.eval_count, done.reason) == (["hello"] * 45, 45, "length")


def test_log_probabilities_do_not_depend_on_options(tiny: LoadedModel) -> None:
    def logprobs(**options: float) -> list[object]:
        run = Run(tiny)
        run.one(PROMPT, num_predict=6, logprobs=True, top_logprobs=4, **options)
        return [entry for event in run.events[0] if isinstance(event, Chunk) for entry in event.logprobs]

    plain = logprobs()
    assert len(plain) == 6
    assert logprobs(temperature=0.1, top_k=1, seed=1) == plain
    assert logprobs(temperature=0.1, top_p=0.0, min_p=1.0, seed=1) == plain


# --- counts ----------------------------------------------------------------------------------------


def test_prompt_counts_include_cached_tokens(tiny: LoadedModel) -> None:
    run = Run(tiny, context=16)
    run.one(PROMPT, num_predict=3)
    run.submit(1, PROMPT, num_predict=3)
    run.submit(2, [*PROMPT, *range(20)], num_keep=4)
    run.finish()
    done = run.done(1)
    assert (done.prompt_eval_count, done.cached) == (len(PROMPT), len(PROMPT) - 1)
    done = run.done(2)
    assert (done.prompt_eval_count, done.truncated) == (16, 14)
    assert done.cached >= 4


def test_durations_exclude_waiting(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes a second; the second request waits five seconds for the first."""
    run = Run(tiny, parallel=1, batch_size=4)
    second = 10**9
    monkeypatch.setattr("puna.engine.sequence.time.monotonic_ns", lambda: 1 + len(run.rows) * second)
    run.submit(0, PROMPT[:4], num_predict=5)
    run.submit(1, PROMPT[1:], num_predict=10)
    run.finish()
    assert len(run.rows) == 5 + 3 + 9
    first, waited = run.done(0), run.done(1)
    assert (first.prompt_eval_duration, first.eval_duration) == (second, 4 * second)
    assert (waited.prompt_eval_duration, waited.eval_duration) == (3 * second, 9 * second)


# --- cancelling and failing ------------------------------------------------------------------------


def test_cancelling_ends_a_long_prompt_within_one_step(tiny: LoadedModel) -> None:
    run = Run(tiny, batch_size=4)
    run.submit(0, [*PROMPT, *PROMPT[:30]] * 3)
    run.engine.step()
    run.engine.cancel(0)
    assert not run.engine.step()
    assert (run.rows, run.events[0], run.engine.active) == ([4], [], 0)
    assert run.leaked() == 0


def test_a_failure_to_find_a_slot_leaves_all_slots_free(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tiny, parallel=3, remembered=1)
    run.one(PROMPT)
    with monkeypatch.context() as patch:
        patch.setattr(run.engine.cache, "copy_prefix", lambda *_: 1 / 0)
        run.submit(1, [*PROMPT[:8], 201])
        run.engine.start()
        for _ in range(2):  # the second answer comes after the step of the first
            run.engine.ask(lambda: None).result(30)
    assert "ZeroDivisionError" in run.failed(1).message

    def submit_three() -> None:
        for number in range(2, 5):
            run.submit(number, [*PROMPT[:8], 200 + number], num_predict=20)

    run.engine.ask(submit_three)
    while len(run.ended) < 5:
        run.engine.ask(lambda: None).result(30)
    assert run.rows.count(3) >= 18  # all three at once
    assert run.engine.ask(run.leaked).result(30) == 0
    run.engine.close()


@pytest.mark.parametrize("part", ["sampler", "tokenizer"])
def test_a_failure_after_the_pass_ends_only_its_request(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    expected = Run(tiny).one(PROMPT)[0]
    run = Run(tiny)
    run.submit(0, PROMPT)
    run.submit(1, PROMPT[3:])
    run.engine.step()
    if part == "sampler":
        (victim,) = [sequence for sequence in run.engine.scheduler if sequence.id == 1]
        victim.sampler = None  # type: ignore[assignment]
    else:
        unlucky = Run(tiny).one(PROMPT[3:])[0][2]
        assert unlucky not in expected
        piece = tiny.tokenizer.piece
        monkeypatch.setattr(tiny.tokenizer, "piece", lambda token: piece(token if token != unlucky else None))
    run.finish()
    assert run.failed(1).kind == "GenerationError"
    assert run.tokens(0) == expected
    assert run.leaked() == 0


def test_a_request_whose_sink_fails_ends_alone(tiny: LoadedModel) -> None:
    expected = Run(tiny).one(PROMPT)[0]
    run = Run(tiny)
    run.submit(0, PROMPT)

    def sink(event: Event) -> None:
        raise OSError("nobody listens")

    run.engine.submit(Generate(id=1, prompt=PROMPT[3:], options=Options(temperature=0)), sink)
    run.finish()
    assert run.tokens(0) == expected
    assert run.leaked() == 0
