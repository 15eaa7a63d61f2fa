"""Drafted tokens change no answer, whatever they are, and leave nothing behind in the cache."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna import demo
from puna.batch import Batch
from puna.engine.drafting.speculation import PromptLookup
from puna.kvcache.types import KVTypes
from puna.model.load import LoadedModel, load_model
from puna.ops import default_backend
from puna.protocol import Chunk
from tests.engine.drafting import PROMPTS, Oracle, answers, compare, draft_always
from tests.engine.runs import Run
from tests.processors import NOT_BUILT
from tests.tiny.forward import logits_of
from tests.tiny.gemma3 import TinyGemma3, tiny_gemma3_gguf
from tests.tiny.llama4 import TinyLlama4, tiny_llama4_gguf

pytestmark = pytest.mark.skipif(default_backend().name != "cpu", reason=NOT_BUILT)


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    """Make prompt lookup return the oracle's answers."""
    oracle = Oracle(lies=0.2)
    monkeypatch.setattr(PromptLookup, "look_up", lambda lookup, most: oracle.look_up(lookup, most))
    draft_always(monkeypatch, oracle.dice)
    return oracle


@pytest.mark.parametrize("lies", [0.0, 0.2, 1.0])
def test_answers_are_the_same_token_for_token(tiny: LoadedModel, oracle: Oracle, lies: float) -> None:
    oracle.lies = lies
    run = compare(tiny, oracle)
    accepted = sum(run.done(number).accepted for number in range(6))
    drafted = sum(run.done(number).drafted for number in range(6))
    assert drafted > 50
    assert accepted == (drafted if lies == 0 else 0) if lies in (0, 1) else 0 < accepted < drafted
    assert run.leaked() == 0


def test_the_outcome_of_drafts_is_recorded_in_the_last_step_too(tiny: LoadedModel, oracle: Oracle) -> None:
    """Ends of answers are found among accepted tokens as well as after them."""
    oracle.lies = 0.0
    text = tiny.tokenizer.decode(Run(tiny).one(PROMPTS[1], num_predict=20)[0])
    stop = next(text[i : i + 2] for i in range(8, len(text) - 2) if text[i : i + 2].isascii())
    run = compare(tiny, oracle, stop=[stop])
    assert run.done(1).stop == stop
    assert run.leaked() == 0


def test_an_end_token_ends_a_draft(
    tiny: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle.lies = 0.0
    tokens = Run(tiny).one(PROMPTS[3], num_predict=20)[0]
    end = next(i for i, token in enumerate(tokens) if token not in tokens[:i] and i > 5)
    monkeypatch.setattr(tiny.tokenizer, "eos_ids", frozenset({tokens[end]}))
    run = compare(tiny, oracle, ignore_eos=False)
    assert (run.done(3).reason, run.done(3).eval_count) == ("stop", end + 1)
    assert run.leaked() == 0


@pytest.mark.parametrize("predict", [1, 2, 7])
def test_drafts_do_not_exceed_num_predict(tiny: LoadedModel, oracle: Oracle, predict: int) -> None:
    oracle.lies = 0.0
    run = compare(tiny, oracle, num_predict=predict)
    assert all(run.done(number).eval_count == predict for number in range(6))


@pytest.mark.parametrize("shift", [True, False])
def test_drafts_do_not_move_the_end_of_the_context(tiny: LoadedModel, oracle: Oracle, shift: bool) -> None:
    run = compare(tiny, oracle, context=40, num_predict=60, shift=shift, num_keep=4)
    assert any(run.done(number).shifted for number in range(6)) == shift
    assert run.leaked() == 0


def test_few_cells_make_streams_wait_and_change_no_answer(tiny: LoadedModel, oracle: Oracle) -> None:
    run = compare(tiny, oracle, capacity=70, parallel=4)
    assert run.leaked() == 0


def test_penalties_and_log_probabilities_are_unchanged_by_drafts(tiny: LoadedModel, oracle: Oracle) -> None:
    settings = {"repeat_penalty": 1.3, "presence_penalty": 0.4, "logprobs": True, "top_logprobs": 2}
    plain = answers(tiny, "off", **settings)
    guessed = compare(tiny, oracle, **settings)
    for number in range(6):
        assert logprobs(guessed, number) == logprobs(plain, number)


def logprobs(run: Run, number: int) -> list[Any]:
    return [entry for e in run.events[number] if isinstance(e, Chunk) for entry in e.logprobs]


def test_rejected_drafts_are_never_shared(tiny: LoadedModel, oracle: Oracle) -> None:
    run = compare(tiny, oracle)
    for number in range(6):  # a second turn reuses what the first left
        turn = [*tiny.tokenizer.encode(PROMPTS[number]), *run.tokens(number), 7, 8, 9]
        run.submit(10 + number, turn)
        run.finish()
        assert run.done(10 + number).cached >= len(turn) - 4
        assert run.tokens(10 + number) == Run(tiny).one(turn)[0]


def test_samples_of_one_prompt_draft_independently(tiny: LoadedModel, oracle: Oracle) -> None:
    runs = [Run(tiny, speculate=speculate) for speculate in ("off", "prompt")]
    for run in runs:
        run.submit(0, PROMPTS[2], samples=4, temperature=1.0, seed=3, num_predict=20)
        run.finish()
    for sample in range(4):
        assert runs[0].tokens(0, sample) == runs[1].tokens(0, sample)


def test_sliding_windows_remove_rejected_drafts(tmp_path: Path, oracle: Oracle) -> None:
    gemma = load_model(tiny_gemma3_gguf(tmp_path / "gemma3.gguf", TinyGemma3(layers=3, pattern=3, window=6)))
    run = compare(gemma, oracle)
    assert sum(run.done(number).drafted for number in range(6)) > 50


def test_chunks_remove_rejected_drafts(tmp_path: Path, oracle: Oracle) -> None:
    config = TinyLlama4(chunk=8, no_rope_interval=2, expert_interval=2, floor_scale=3)
    run = compare(load_model(tiny_llama4_gguf(tmp_path / "llama4.gguf", config)), oracle)
    assert sum(run.done(number).drafted for number in range(6)) > 50


def test_recurrent_layers_remove_rejected_drafts(recurrent: LoadedModel, oracle: Oracle) -> None:
    run = compare(recurrent, oracle, num_predict=40)
    accepted = sum(run.done(number).accepted for number in range(6))
    assert 20 < accepted < sum(run.done(number).drafted for number in range(6))
    assert run.leaked() == 0


def test_the_demo_model_answers_the_same(oracle: Oracle) -> None:
    run = compare(load_model(demo.path()), oracle, context=96, num_predict=40)
    assert sum(run.done(number).accepted for number in range(6)) > 50


def test_a_draft_that_fails_the_batch_fails_no_request(
    tiny: LoadedModel, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [Run(tiny).one(prompt)[0] for prompt in PROMPTS[:3]]
    lucky = {token for tokens in expected for token in tokens}
    lucky.update(*(tiny.tokenizer.encode(prompt) for prompt in PROMPTS[:3]))
    unlucky = next(token for token in range(256) if token not in lucky)
    monkeypatch.setattr(PromptLookup, "look_up", lambda lookup, most: (4, [unlucky] * most))
    forward = tiny.model.forward

    def failing(batch, cache):
        if unlucky in batch.tokens.tolist():
            raise RuntimeError("this token is unlucky")
        return forward(batch, cache)

    monkeypatch.setattr(tiny.model, "forward", failing)
    run = Run(tiny, speculate="prompt")
    for number, prompt in enumerate(PROMPTS[:3]):
        run.submit(number, prompt)
    run.finish()
    assert [run.tokens(number) for number in range(3)] == expected
    assert run.leaked() == 0


@pytest.mark.slow
def test_the_distribution_is_that_of_the_logits(tiny: LoadedModel, oracle: Oracle) -> None:
    """The token before a draft and the one after an accepted draft, over many seeds."""
    prompt = tiny.tokenizer.encode(PROMPTS[0])
    begin = [int(probabilities(tiny, prompt).argmax())]
    after_begin = probabilities(tiny, [*prompt, *begin])
    begin.append(int(after_begin.argmax()))
    after_guess = probabilities(tiny, [*prompt, *begin])
    oracle.texts, oracle.lies = [[*prompt, *begin, 0]], 0.0
    run, count, together = Run(tiny, speculate="prompt", parallel=40, context=32), 4000, 40
    for seed in range(count):
        sampling = {"temperature": TEMPERATURE, "top_k": 0, "top_p": 1.0, "seed": seed}
        run.submit(seed, prompt, num_predict=3, **sampling)
        if seed % together == together - 1:
            run.finish()  # nothing is drafted while prompts are read
    found = [run.tokens(seed) for seed in range(count)]
    assert sum(run.done(seed).accepted for seed in range(count)) > 300
    check_distribution([tokens[1] for tokens in found if tokens[0] == begin[0]], after_begin)
    check_distribution([tokens[2] for tokens in found if tokens[:2] == begin], after_guess)


TEMPERATURE = 0.25


def probabilities(loaded: LoadedModel, tokens: list[int]) -> Any:
    """Return the probability of every token after `tokens`, from a separate pass."""
    cache = loaded.make_cache(sequences=1, context=64, types=KVTypes.parse("f32"))
    batch = Batch.of(tokens, list(range(len(tokens))), [0] * len(tokens), [])
    batch.outputs = np.array([len(tokens) - 1])
    cache.start_forward(batch)
    logits = logits_of(loaded.model, batch, cache)[0].double()
    return (logits / TEMPERATURE).softmax(0).numpy()


def check_distribution(tokens: list[int], expected: Any) -> None:
    """Pearson's chi-squared test on the ten likeliest tokens and all others together."""
    likeliest = np.argsort(-expected)[:10]
    counts = Counter(tokens)
    observed = np.array([counts[int(token)] for token in likeliest])
    slices = expected[likeliest]
    observed = np.append(observed, len(tokens) - observed.sum())
    wanted = len(tokens) * np.append(slices, 1 - slices.sum())
    assert wanted.min() > 5  # otherwise the test would be meaningless
    assert ((observed - wanted) ** 2 / wanted).sum() < 29.59  # 0.1 % exceed it with ten degrees of freedom


def test_prompt_lookup_survives_shifts(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no oracle, but few different bytes, so that matches abound."""
    draft_always(monkeypatch, random.Random(5))
    prompt = [random.Random(1).choice([65, 66, 67]) for _ in range(24)]
    for temperature in (0.0, 0.6):
        settings = {"temperature": temperature, "seed": 4, "num_predict": 150, "num_keep": 4}
        expected, plain = Run(tiny, context=40).one(prompt, **settings)
        tokens, done = Run(tiny, context=40, speculate="prompt").one(prompt, **settings)
        assert tokens == expected
        assert done.shifted == plain.shifted > 60
        assert done.drafted > 10
