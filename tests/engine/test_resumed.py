"""An answer that another engine began is repeated, and then goes on as if it had never been interrupted."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from puna import demo
from puna.batch import BatchArrays
from puna.chat.answers.family import Reading
from puna.chat.answers.parts import Tags
from puna.chat.answers.registry import FAMILIES, PLAIN
from puna.chat.answers.tools import tools_of
from puna.engine.requests import FittedPrompt
from puna.errors import RequestError
from puna.grammar.format import Format
from puna.kvcache.causal import CausalCache
from puna.model.load import LoadedModel, load_model
from puna.options import Options
from puna.protocol import Chunk, Done, Event, Failed, Generate
from tests.chat.answers.reading import TOOLS
from tests.engine.drafting import draft_always
from tests.engine.runs import Run, change_logits
from tests.tiny.decoders import tiny_decoder_gguf
from tests.tiny.heads import MODELS

PROMPT = "hello once upon a time"
HOT: dict[str, Any] = {"temperature": 1.2, "top_k": 0, "top_p": 1.0, "num_predict": 24}
BEGUN = Reading(PLAIN, Tags("<think>", "</think>"), prompt="<think>")

#: Options of each way to draw a token; all draw at random except the first.
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "plain": {},
    "cut": {"top_k": 20, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9, "top_n_sigma": 3.0},
    "penalties": {"repeat_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "window": {"repeat_penalty": 1.6, "repeat_last_n": 5},
    "dry": {"dry_multiplier": 2.0, "dry_allowed_length": 1, "temperature": 0.7},
    "mirostat": {"mirostat": 1, "mirostat_tau": 3.0},
    "mirostat 2": {"mirostat": 2, "mirostat_eta": 0.3},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.01},
    "dynamic": {"dynatemp_range": 0.6},
    "bias": {"logit_bias": {"5": 4.0, "9": 3.0}, "banned_tokens": [7], "min_tokens": 6},
}

Submit = Callable[[Run, list[list[int]]], None]


def answers(run: Run, number: int = 0) -> dict[int, list[Event]]:
    """Return the events of each sample of a request, without times and what depends on other requests."""
    found: dict[int, list[Event]] = {}
    for event in run.events[number]:
        assert not isinstance(event, Failed), event
        if isinstance(event, Done):
            event = msgspec.structs.replace(
                event,
                prompt_eval_duration=0,
                eval_duration=0,
                cached=0,
                drafted=0,
                accepted=0,
                drafted_by="",
                resumed=0,
            )
        found.setdefault(getattr(event, "sample", 0), []).append(event)
    return found


def check(make: Callable[[], Run], submit: Submit, cuts: Sequence[float], samples: int = 1) -> list[Run]:
    """Compare a whole answer with those that are resumed after these shares of their tokens."""
    whole = make()
    submit(whole, [])
    whole.finish()
    tokens = [whole.tokens(0, sample) for sample in range(samples)]
    assert all(len(each) > 4 for each in tokens)
    runs = []
    for cut in cuts:
        known = [each[: round(cut * len(each))] for each in tokens]
        run = make()
        submit(run, known)
        run.finish()
        assert answers(run) == answers(whole)
        assert [run.done(0, sample).resumed for sample in range(samples)] == [*map(len, known)]
        assert run.leaked() == 0
        runs.append(run)
    return runs


def chat(
    reading: Reading | None, *, format: Format | None = None, budget: int | None = None, **options: Any
) -> Submit:
    """Return a function that submits a request whose answer is read as `reading`."""

    def submit(run: Run, known: list[list[int]]) -> None:
        merged = Options.merge({**HOT, "seed": 7}, options)
        request = Generate(
            prompt=PROMPT, options=merged, format=format, ignore_eos=True, resumed=known, logprobs=True
        )
        tokens = run.engine.loaded.tokenizer.encode(PROMPT)
        prompt = FittedPrompt(tokens, reading=reading, format=format, budget=budget)
        run.engine.submit(request, run._sink(0), prompt)

    return submit


@pytest.mark.parametrize("kind", SAMPLING)
def test_every_way_of_drawing_goes_on_exactly(tiny: LoadedModel, kind: str) -> None:
    dice = random.Random(kind)
    settings: dict[str, Any] = {**HOT, "logprobs": True, "top_logprobs": 2, **SAMPLING[kind]}
    settings["sampled_logprobs"] = dice.random() < 0.5

    def submit(run: Run, known: list[list[int]]) -> None:
        run.submit(0, PROMPT, **settings, seed=11, resumed=known)

    check(lambda: Run(tiny), submit, [1 / 24, *(dice.random() for _ in range(3)), 1])


def test_every_kind_of_cache_goes_on_exactly(model: LoadedModel) -> None:
    def submit(run: Run, known: list[list[int]]) -> None:
        run.submit(0, PROMPT, **HOT, seed=4, resumed=known)

    runs = check(lambda: Run(model), submit, [0.3, 0.8])
    most = runs[1].engine.cache.max_drafts
    assert max(runs[1].rows[1:]) == 1 + min(most, 18)


def test_samples_of_which_some_have_ended_go_on_exactly(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = frozenset(range(40, 50))
    monkeypatch.setattr(tiny.tokenizer, "eos_ids", ends)
    settings: dict[str, Any] = {**HOT, "num_predict": 30, "ignore_eos": False, "min_tokens": 5, "seed": 2}
    whole = Run(tiny)
    whole.submit(0, PROMPT, **settings, samples=4)
    whole.finish()
    reasons = [whole.done(0, sample).reason for sample in range(4)]
    assert len({*reasons}) == 2, reasons
    tokens = [whole.tokens(0, sample) for sample in range(4)]
    for known in ([tokens[0], tokens[1][:3], [], tokens[3][:7]], [tokens[0][:1]], tokens):
        run = Run(tiny, parallel=3)
        run.submit(0, PROMPT, **settings, samples=4, resumed=known)
        run.submit(1, "hello", **HOT, seed=1)  # another answer in the same batches
        run.finish()
        assert answers(run) == answers(whole)
        alone = Run(tiny)
        alone.submit(1, "hello", **HOT, seed=1)
        alone.finish()
        assert run.tokens(1) == alone.tokens(1)


def test_stop_strings_and_limits_end_an_answer_where_they_did(tiny: LoadedModel) -> None:
    run = Run(tiny)
    run.submit(0, PROMPT, **HOT, seed=3)
    run.finish()
    text = run.text(0)
    stop = next(text[i : i + 2] for i in range(9, len(text) - 2) if text[i : i + 2].isascii())

    def submit(run: Run, known: list[list[int]]) -> None:
        run.submit(0, PROMPT, **HOT, seed=3, stop=[stop], logprobs=True, resumed=known)

    [first, _, last] = check(lambda: Run(tiny), submit, [0.2, 0.7, 1])
    assert first.done(0).stop == last.done(0).stop == stop
    # What was sent and more than that: the answer ends where it must.
    more = Run(tiny)
    submit(more, [run.tokens(0)])
    more.finish()
    assert answers(more) == answers(first)


@pytest.mark.parametrize("shift", [True, False])
def test_the_end_of_the_context_stays_where_it_was(model: LoadedModel, shift: bool) -> None:
    def submit(run: Run, known: list[list[int]]) -> None:
        settings = {**HOT, "num_predict": 70, "num_keep": 4, "seed": 9, "shift": shift}
        run.submit(0, PROMPT, **settings, resumed=known)

    runs = check(lambda: Run(model, context=40), submit, [0.3, 0.6, 0.9])
    assert all((run.done(0).shifted > 0) == shift for run in runs)


@pytest.mark.slow
def test_formats_and_calls_go_on_exactly(tiny: LoadedModel) -> None:
    forms = {"enum": ["story", "time"]}
    schema = Format.json_schema({"type": "object", "properties": {"a": forms}, "required": ["a"]})
    calls = Reading(FAMILIES["hermes"], tools=tools_of(TOOLS), choice="required")
    for format, reading in (
        (Format.regex("(a|b) story [a-z]{9}[0-9]*"), None),
        (schema, None),
        (None, calls),
    ):
        check(lambda: Run(tiny), chat(reading, format=format, num_predict=40), [0.25, 0.6, 1])


@pytest.mark.parametrize("budget", [None, 5])
def test_thinking_goes_on_exactly(tiny: LoadedModel, budget: int | None) -> None:
    check(lambda: Run(tiny), chat(BEGUN, budget=budget), [0.1, 0.35, 0.5, 1])


def test_thinking_that_was_told_to_end_ends_there_again(tiny: LoadedModel) -> None:
    submit, whole = chat(BEGUN), Run(tiny)
    submit(whole, [])
    for _ in range(6):
        whole.engine.step()
    whole.engine.finish_thinking(0)
    whole.finish()
    assert whole.done(0).thought == 6
    for count in (7, 12, 20):
        run = Run(tiny)
        submit(run, [whole.tokens(0)[:count]])
        run.engine.finish_thinking(0)
        run.finish()
        assert answers(run) == answers(whole)


@pytest.mark.slow
def test_tokens_that_the_format_rejected_are_drawn_again(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token " the" would end the thinking and begin the answer with "he"; each time takes a number."""
    (the,), (end,), *digits = (
        tiny.tokenizer.encode(text, add_special=False, first=False) for text in (" the", " t", *"0123456789")
    )

    def said(logits: NDArray[np.float32], batch: BatchArrays) -> NDArray[np.float32]:
        logits = np.full_like(logits, -20.0)
        logits[:, [token for [token] in digits]] = 1.0
        logits[:, [the, end]] = 3.0, 0.5
        return logits

    change_logits(monkeypatch, tiny, said)
    submit = chat(Reading(PLAIN, Tags("<", " t"), "<"), format=Format.regex("[0-9]{12}"), temperature=1.0)
    runs = check(lambda: Run(tiny), submit, [0.1, 0.2, 0.5, 0.9])
    assert all(run.done(0).diverged == 0 for run in runs)
    run = Run(tiny)
    submit(run, [[the, the]])
    run.finish()
    assert "cannot be repeated" in run.failed(0).message


@pytest.mark.slow
def test_answers_with_drafts_go_on_exactly(
    tiny: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft_always(monkeypatch, random.Random(5))
    path = tmp_path / "heads.gguf"
    tiny_decoder_gguf(path, MODELS["qwen35"])
    heads = load_model(path)

    def submit(run: Run, known: list[list[int]]) -> None:
        run.submit(0, "hello hello hello hello", **HOT | {"temperature": 0.3}, seed=8, resumed=known)

    for make in (
        lambda: Run(tiny, speculate="prompt"),
        lambda: Run(tiny, draft=tiny),
        lambda: Run(heads, speculate="mtp"),
    ):
        runs = check(make, submit, [0.3, 0.7, 1])
        assert runs[0].done(0).drafted > 0
        assert runs[2].done(0).drafted == runs[2].done(0).accepted == 0


@pytest.mark.slow
def test_an_answer_is_repeated_almost_as_fast_as_a_prompt_is_read() -> None:
    loaded = load_model(demo.path())
    whole = Run(loaded, context=512)
    tokens, _ = whole.one("once upon", **{**HOT, "num_predict": 400}, seed=1)
    run = Run(loaded, context=512)
    again, done = run.one("once upon", **{**HOT, "num_predict": 400}, seed=1, resumed=[tokens[:-1]])
    assert again == tokens
    assert len(run.rows) == 1 + -(-399 // 65)
    totals = run.engine.clock.totals
    assert (totals.tokens, totals.drafted, totals.accepted) == (1, 0, 0)
    assert (done.drafted, done.accepted, done.resumed, done.diverged) == (0, 0, 399, 0)


def test_a_cache_without_drafts_repeats_one_by_one(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CausalCache, "max_drafts", 0)

    def submit(run: Run, known: list[list[int]]) -> None:
        run.submit(0, PROMPT, **HOT, seed=4, resumed=known)

    [run] = check(lambda: Run(tiny), submit, [0.5])
    assert {*run.rows[1:]} == {1}


def test_known_tokens_replace_others_which_are_counted(tiny: LoadedModel) -> None:
    """An engine with other kernels may have drawn them."""
    known = [(3 * place) % 256 for place in range(10)]
    run = Run(tiny)
    run.submit(0, PROMPT, resumed=[known], logprobs=True)
    run.finish()
    expected, _ = Run(tiny).one([*tiny.tokenizer.encode(PROMPT), *known], num_predict=2)
    assert run.tokens(0) == [*known, *expected]
    assert 5 < run.done(0).diverged <= run.done(0).resumed == 10
    logprobs = [each for event in run.events[0] if isinstance(event, Chunk) for each in event.logprobs]
    assert [each.id for each in logprobs] == run.tokens(0)
    drawn = Run(tiny)  # with probabilities that such tokens do not have
    drawn.submit(0, PROMPT, resumed=[known], logprobs=True, sampled_logprobs=True, top_k=1, seed=1)
    drawn.finish()
    assert drawn.tokens(0)[:10] == known


def test_a_preempted_answer_goes_on_repeating(tiny: LoadedModel) -> None:
    whole = Run(tiny)
    tokens, _ = whole.one(PROMPT, **HOT, seed=4)
    run = Run(tiny, capacity=80, parallel=4)
    for number in range(4):
        run.submit(number, PROMPT, **HOT, seed=4, resumed=[tokens[: 6 * number]], cache_prompt=False)
    run.finish()
    assert all(run.tokens(number) == tokens for number in range(4))
    assert run.leaked() == 0


def test_running_answers_are_delayed_no_more_than_by_a_prompt(tiny: LoadedModel) -> None:
    known, _ = Run(tiny, context=128).one(PROMPT, **{**HOT, "num_predict": 90}, seed=4)
    run = Run(tiny, context=128)
    run.submit(0, "hello", num_predict=100)
    run.engine.step()
    pace = run.engine.scheduler.pace
    pace.budget = lambda streams, prompts: 7 if streams else 512  # type: ignore[method-assign]
    run.submit(1, PROMPT, **{**HOT, "num_predict": 90}, seed=4, resumed=[known])
    run.finish()
    assert run.tokens(1) == known
    assert sorted({*run.rows})[-2:] == [8, 9]


def test_bad_requests_to_resume_are_refused(tiny: LoadedModel) -> None:
    run = Run(tiny)
    for settings, complaint in (
        ({"resumed": [[5, tiny.tokenizer.vocab_size]]}, "outside the vocabulary"),
        ({"resumed": [[-1]]}, "outside the vocabulary"),
        ({"resumed": [[5], [6]]}, "2 answers, and samples is 1"),
        ({"resumed": [[5]], "temperature": 0.5}, "only with the seed"),
    ):
        with pytest.raises(RequestError, match=complaint):
            run.submit(0, PROMPT, **settings)
