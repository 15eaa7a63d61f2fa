"""The engine on a tiny model, stepped on this thread so that nothing depends on timing."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from puna.errors import ContextLengthError, RequestError, RunnerError
from puna.model.load import LoadedModel
from puna.protocol import Chunk, Failed, TokenLogprob
from tests.engine.runs import Run, Watched, change_logits

PROMPTS = [f"{'hello world ' * (i % 3)}once upon a time {i}" for i in range(8)]


def test_a_generation_has_the_requested_length_and_counts_everything(tiny: LoadedModel) -> None:
    tokens, done = Run(tiny).one("hello world", num_predict=7)
    assert len(tokens) == done.eval_count == 7
    assert done.reason == "length"
    assert done.prompt_eval_count == len(tiny.tokenizer.encode("hello world"))
    assert done.prompt_eval_duration > 0
    assert done.eval_duration > 0
    assert (done.cached, done.truncated, done.shifted) == (0, 0, 0)


def test_eight_streams_give_the_same_answers_as_alone(tiny: LoadedModel) -> None:
    alone = [Run(tiny).one(prompt)[0] for prompt in PROMPTS]
    together = Run(tiny, parallel=8)
    for number, prompt in enumerate(PROMPTS):
        together.submit(number, prompt)
        if number % 3 == 2:
            together.engine.step()  # some begin while others are running
    together.finish()
    assert [together.tokens(number) for number in range(8)] == alone


def test_more_requests_than_slots_wait_their_turn(tiny: LoadedModel) -> None:
    alone = [Run(tiny).one(prompt)[0] for prompt in PROMPTS]
    run = Run(tiny, parallel=2)
    for number, prompt in enumerate(PROMPTS):
        run.submit(number, prompt)
    run.finish()
    assert [run.tokens(number) for number in range(8)] == alone


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_reading_a_prompt_in_parts_changes_nothing(tiny: LoadedModel, batch_size: int) -> None:
    whole = Run(tiny).one(PROMPTS[2])[0]
    assert Run(tiny, batch_size=batch_size).one(PROMPTS[2])[0] == whole


def test_a_long_prompt_does_not_stall_a_running_stream(tiny: LoadedModel) -> None:
    run = Run(tiny, batch_size=8)
    run.submit(0, "hello", num_predict=30)
    run.engine.step()
    run.submit(1, "hello world " * 4)
    for expected in range(2, 6):
        run.engine.step()
        assert len(run.tokens(0)) == expected


def test_a_second_turn_evaluates_only_new_inputs(tiny: LoadedModel) -> None:
    run = Run(tiny)
    first, done = run.one(PROMPTS[1], num_predict=5)
    prompt = tiny.tokenizer.encode(PROMPTS[1])
    turn = [*prompt, *first, *tiny.tokenizer.encode(" and then", add_special=False)]
    run.submit(1, turn)
    run.finish()
    # The last generated token was sampled but never evaluated.
    assert run.done(1).cached == len(prompt) + len(first) - 1
    assert run.done(1).prompt_eval_count == len(turn)
    assert run.tokens(1) == Run(tiny).one(turn)[0]
    assert done.cached == 0


def test_an_equal_prompt_leaves_one_token_to_evaluate(tiny: LoadedModel) -> None:
    run = Run(tiny)
    first, _ = run.one(PROMPTS[0])
    run.submit(1, PROMPTS[0])
    run.finish()
    assert run.done(1).cached == run.done(1).prompt_eval_count - 1
    assert run.tokens(1) == first


def test_a_stop_string_ends_the_text_before_it(tiny: LoadedModel) -> None:
    tokens, _ = Run(tiny).one(PROMPTS[0])
    text = tiny.tokenizer.decode(tokens)
    stop = next(text[i : i + 2] for i in range(3, len(text) - 2) if text[i : i + 2].isascii())
    run = Run(tiny)
    run.submit(0, PROMPTS[0], stop=["never found", stop])
    run.finish()
    assert run.text(0) == text[: text.index(stop)]
    assert (run.done(0).reason, run.done(0).stop) == ("stop", stop)


def test_an_end_token_ends_the_generation_and_is_counted(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, _ = Run(tiny).one(PROMPTS[3])
    end = next(i for i, token in enumerate(tokens) if token not in tokens[:i] and i > 2)
    monkeypatch.setattr(tiny.tokenizer, "eos_ids", frozenset({tokens[end]}))
    run = Run(tiny)
    run.submit(0, PROMPTS[3], ignore_eos=False)
    run.finish()
    assert run.tokens(0) == tokens[:end]
    assert (run.done(0).reason, run.done(0).eval_count) == ("stop", end + 1)


def test_log_probabilities_include_the_final_tokens(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Run(tiny)
    plain.submit(0, PROMPTS[0], logprobs=True)
    plain.finish()
    entries = [entry for event in plain.events[0] if isinstance(event, Chunk) for entry in event.logprobs]
    assert plain.done(0).ending == []
    end = next(i for i, token in enumerate(plain.tokens(0)) if token not in plain.tokens(0)[:i] and i > 2)

    def ended(**settings: object) -> list[TokenLogprob]:
        run = Run(tiny)
        run.submit(0, PROMPTS[0], logprobs=True, **settings)
        run.finish()
        done = run.done(0)
        shown = [entry for event in run.events[0] if isinstance(event, Chunk) for entry in event.logprobs]
        assert done.reason == "stop"
        assert shown + done.ending == entries[: done.eval_count]
        return done.ending

    text = plain.text(0)
    stop = next(text[i : i + 2] for i in range(3, len(text) - 2) if text[i : i + 2].isascii())
    assert b"".join(bytes(entry.bytes) for entry in ended(stop=[stop])).startswith(stop.encode())
    monkeypatch.setattr(tiny.tokenizer, "eos_ids", frozenset({plain.tokens(0)[end]}))
    assert ended(ignore_eos=False) == [entries[end]]


def test_chunks_are_whole_characters(tiny: LoadedModel) -> None:
    run = Run(tiny)
    for number in range(4):
        run.submit(number, PROMPTS[number], temperature=1.5, seed=number, num_predict=40)
    run.finish()
    for number in range(4):
        data = b"".join(tiny.tokenizer.piece(token) for token in run.tokens(number))
        assert run.text(number) == data.decode(errors="replace").rstrip("�") or "�" in run.text(number)


def test_equal_seeds_give_equal_answers_and_different_seeds_differ(tiny: LoadedModel) -> None:
    def sample(seed: int) -> list[int]:
        return Run(tiny).one(PROMPTS[0], temperature=1.2, seed=seed, num_predict=20)[0]

    assert sample(5) == sample(5)
    assert len({tuple(sample(seed)) for seed in range(4)}) > 1


def test_log_probabilities_come_from_raw_logits(tiny: LoadedModel) -> None:
    run = Run(tiny)
    run.submit(0, PROMPTS[0], logprobs=True, top_logprobs=3, temperature=0, num_predict=5)
    run.finish()
    entries = [entry for event in run.events[0] if isinstance(event, Chunk) for entry in event.logprobs]
    assert len(entries) == 5
    for entry, token in zip(entries, run.tokens(0), strict=True):
        assert bytes(entry.bytes) == tiny.tokenizer.piece(token)
        assert entry.logprob == entry.top[0].logprob  # greedy: the chosen one is the best
        assert [top.logprob for top in entry.top] == sorted((top.logprob for top in entry.top), reverse=True)
        assert len(entry.top) == 3


def test_a_cancelled_request_stops_within_one_step_and_is_silent(tiny: LoadedModel) -> None:
    run = Run(tiny)
    run.submit(0, PROMPTS[0], num_predict=100)
    run.submit(1, PROMPTS[1], num_predict=100)
    run.engine.step()
    run.engine.step()
    heard = len(run.events[0])
    run.engine.cancel(0)
    run.engine.step()
    assert len(run.events[0]) == heard
    assert run.engine.active == 1
    run.engine.cancel(1)
    assert not run.engine.step()
    assert run.engine.active == 0
    run.submit(2, PROMPTS[2])
    run.finish()
    assert run.done(2).eval_count == 12


def test_a_waiting_request_can_be_cancelled(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1)
    run.submit(0, PROMPTS[0])
    run.submit(1, PROMPTS[1])
    run.engine.step()
    run.engine.cancel(1)
    run.finish()
    assert run.done(0).eval_count == 12
    assert run.events[1] == []


def test_generation_continues_past_the_context_by_shifting(tiny: LoadedModel) -> None:
    run = Run(tiny, context=32)
    run.submit(0, "hello world", num_predict=100, num_keep=4)
    run.finish()
    done = run.done(0)
    assert (done.eval_count, done.reason) == (100, "length")
    assert done.shifted >= 70


def test_without_shift_generation_ends_when_the_context_is_full(tiny: LoadedModel) -> None:
    prompt = tiny.tokenizer.encode("hello world")
    tokens, done = Run(tiny, context=32).one(prompt, num_predict=100, shift=False)
    # The token computed from the last position of the context is still delivered.
    assert len(tokens) == 32 - len(prompt) + 1
    assert done.reason == "length"
    assert done.shifted == 0


def test_a_prompt_as_long_as_the_context_still_gets_an_answer(tiny: LoadedModel) -> None:
    tokens, done = Run(tiny, context=16).one([5] * 16, shift=False)
    assert (len(tokens), done.reason) == (1, "length")


def test_a_long_prompt_is_cut_and_the_reply_reports_it(tiny: LoadedModel) -> None:
    tokens = list(range(40))
    run = Run(tiny, context=32)
    run.submit(0, tokens, num_predict=1, num_keep=3)
    run.finish()
    assert (run.done(0).truncated, run.done(0).prompt_eval_count) == (8, 32)
    keep = 3 + tiny.tokenizer.add_bos
    alone = Run(tiny, context=32).one([*tokens[:keep], *tokens[keep + 8 :]], num_predict=1)
    assert run.tokens(0) == alone[0]


def test_a_long_prompt_is_refused_if_it_must_not_be_cut(tiny: LoadedModel) -> None:
    run = Run(tiny, context=32)
    with pytest.raises(ContextLengthError, match="40 tokens > 32"):
        run.submit(0, list(range(40)), truncate=False)


@pytest.mark.parametrize(
    ("prompt", "words"), [([], "empty"), ([1, 100_000], "vocabulary"), ([-1], "vocabulary")]
)
def test_unusable_prompts_are_refused(tiny: LoadedModel, prompt: list[int], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        Run(tiny).submit(0, prompt)


def test_a_sequence_with_non_finite_logits_fails_alone(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Run(tiny).one(PROMPTS[1])[0]
    forward = tiny.model.forward

    def poisoned(batch, cache):
        logits = forward(batch, cache)
        sequences = run.batches[-1].sequences
        rows = sequences if batch.outputs is None else sequences[batch.outputs]
        logits[rows == 0] = np.nan
        return logits

    monkeypatch.setattr(tiny.model, "forward", poisoned)
    run = Watched(tiny)
    run.submit(0, PROMPTS[0])
    run.submit(1, PROMPTS[1])
    run.finish()
    failed = run.events[0][-1]
    assert isinstance(failed, Failed)
    assert failed.kind == "GenerationError"
    assert run.tokens(1) == expected


def test_a_failing_forward_pass_fails_its_requests_and_the_engine_continues(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tiny)
    with monkeypatch.context() as patch:
        patch.setattr(tiny.model, "forward", lambda batch, cache: 1 / 0)
        run.submit(0, PROMPTS[0])
        run.finish()
    failed = run.events[0][-1]
    assert isinstance(failed, Failed)
    assert "ZeroDivisionError" in failed.message
    run.submit(1, PROMPTS[1])
    run.finish()
    assert run.tokens(1) == Run(tiny).one(PROMPTS[1])[0]


def test_close_fails_all_requests(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=1)
    run.submit(0, PROMPTS[0])
    run.submit(1, PROMPTS[1])
    run.engine.step()
    run.engine.close()
    for number in (0, 1):
        failed = run.events[number][-1]
        assert isinstance(failed, Failed)
        assert failed.kind == "RunnerError"


def test_the_context_is_limited_to_the_trained_one(tiny: LoadedModel) -> None:
    assert Run(tiny, context=100_000).engine.context == 128


def test_no_cells_leak(tiny: LoadedModel) -> None:
    run = Run(tiny, parallel=3)
    for number in range(30):
        run.submit(number, PROMPTS[number % 8], num_predict=1 + number % 9)
        if number % 4 == 0:
            run.engine.step()
            run.engine.cancel(number)
    run.finish()
    assert run.leaked() == 0


def test_requests_of_a_failed_batch_are_retried_one_by_one(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [Run(tiny).one(PROMPTS[number])[0] for number in (0, 2)]
    forward = tiny.model.forward
    lucky = {token for tokens in expected for token in tokens}
    lucky.update(*(tiny.tokenizer.encode(PROMPTS[number]) for number in (0, 2)))
    unlucky = next(token for token in range(256) if token not in lucky)

    def failing(batch, cache):
        if unlucky in batch.tokens.tolist():
            raise RuntimeError("this token is unlucky")
        return forward(batch, cache)

    monkeypatch.setattr(tiny.model, "forward", failing)
    run = Run(tiny)
    run.submit(0, PROMPTS[0])
    run.submit(1, [5, unlucky, 6])
    run.submit(2, PROMPTS[2])
    run.finish()
    failed = run.events[1][-1]
    assert isinstance(failed, Failed)
    assert "unlucky" in failed.message
    assert [run.tokens(0), run.tokens(2)] == expected
    assert run.leaked() == 0


def test_a_defect_outside_the_model_fails_requests_and_the_engine_continues(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tiny)
    with monkeypatch.context() as patch:
        patch.setattr(run.engine.cache, "start_forward", lambda batch: 1 / 0)
        patch.setattr(run.engine.prefix_cache, "find", lambda keys, most: 1 / 0)
        run.submit(0, PROMPTS[0])
        run.engine.start()
        for _ in range(2):  # the second answer comes after the step of the first
            run.engine.ask(lambda: None).result(30)
    assert isinstance(run.events[0][-1], Failed)
    run.submit(1, PROMPTS[1])
    run.engine.ask(lambda: None).result(30)
    run.engine.close()
    assert run.events[1]


def test_functions_passed_to_ask_run_between_steps(tiny: LoadedModel) -> None:
    run = Run(tiny)
    run.submit(0, PROMPTS[0])
    run.engine.step()
    asked = run.engine.ask(lambda: (threading.current_thread().name, len(run.tokens(0))))
    failing = run.engine.ask(lambda: 1 // 0)
    assert not asked.done()
    run.engine.step()
    assert asked.result(0) == (threading.current_thread().name, 1)
    assert isinstance(failing.exception(0), ZeroDivisionError)
    run.finish()
    assert run.done(0).eval_count == 12


def test_an_idle_engine_runs_functions_passed_to_ask(tiny: LoadedModel) -> None:
    engine = Run(tiny).engine
    engine.start()
    assert engine.ask(lambda: threading.current_thread().name).result(30) == "puna-engine"
    engine.close()
    with pytest.raises(RunnerError, match="shutting down"):
        engine.ask(lambda: None)


def test_padding_of_the_output_beyond_the_vocabulary_is_never_drawn(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = Run(tiny).one(PROMPTS[0])[0]
    change_logits(monkeypatch, tiny, lambda logits, _: np.pad(logits, [(0, 0), (0, 5)], constant_values=1e6))
    assert Run(tiny).one(PROMPTS[0])[0] == expected
