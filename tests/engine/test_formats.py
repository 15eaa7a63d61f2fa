"""Answers in a format: beside others, with drafts, samples, stop strings, seeds and log-probabilities."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest

from puna.engine import engine
from puna.grammar.compiler import client
from puna.grammar.compiler.client import RemoteConstraint
from puna.grammar.format import Format
from puna.model.load import LoadedModel
from puna.protocol import Chunk, Done, Failed
from tests.engine.drafting import draft_always
from tests.engine.runs import Run
from tests.grammar.schemas import random_schema
from tests.waiting import PATIENCE_S

#: A random model says anything; with these settings the format ends the answer.
HOT = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "num_predict": 60}
POINT: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["once upon a time", "hello world"]}, "x": {"type": "integer"}},
    "required": ["name", "x"],
    "additionalProperties": False,
}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold no answer, even on a busy machine: a held answer loses the rest of its draft. Draft for all."""
    monkeypatch.setattr(engine, "_MASK_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(client, "_SLOW_S", PATIENCE_S)


def schemas(count: int) -> list[Any]:
    return [random_schema(random.Random(seed)) for seed in range(count)]


def talk(model: LoadedModel, *, each: int = 1, **settings: Any) -> Run:
    """Run eight answers in eight formats beside one without; some join while others are running."""
    run = Run(model, parallel=8, context=128, **settings)
    for number, schema in enumerate(schemas(8)):
        run.submit(
            number, f"hello {number}", format=Format.json_schema(schema), seed=number, samples=each, **HOT
        )
        if number % 3 == 2:
            run.engine.step()
    run.submit(99, "once upon", seed=3, **HOT)
    run.finish()
    return run


@pytest.fixture(scope="module")
def talked(tiny: LoadedModel) -> Run:
    return talk(tiny, each=2)


def samples(run: Run, number: int) -> list[tuple[str, Done]]:
    found = []
    for sample in range(2):
        text = "".join(
            event.text for event in run.events[number] if isinstance(event, Chunk) and event.sample == sample
        )
        found.append((text, run.done(number, sample)))
    return found


@pytest.mark.slow
def test_eight_answers_at_once_satisfy_their_schemas(talked: Run) -> None:
    ended = 0
    for number, schema in enumerate(schemas(8)):
        for text, done in samples(talked, number):
            if done.reason == "length":
                assert done.eval_count == HOT["num_predict"]
                continue
            ended += 1
            jsonschema.validate(json.loads(text), schema)
    assert ended >= 6


def test_formatted_answers_are_the_same_as_alone(talked: Run, tiny: LoadedModel) -> None:
    for number in (1, 4):
        run = Run(tiny, context=128)
        format = Format.json_schema(schemas(8)[number])
        run.submit(0, f"hello {number}", format=format, seed=number + 1, **HOT)
        run.finish()
        assert (run.text(0), run.done(0).reason) == (
            samples(talked, number)[1][0],
            samples(talked, number)[1][1].reason,
        )
    run = Run(tiny, context=128)
    run.submit(0, "once upon", seed=3, **HOT)
    run.finish()
    assert run.text(0) == talked.text(99)


@pytest.mark.parametrize("speculate", ["off", "prompt"])
def test_drafts_change_no_answer(
    talked: Run, tiny: LoadedModel, speculate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced tokens are always accepted, here also as the only drafts."""
    draft_always(monkeypatch, random.Random(2))
    guessed = talk(tiny, each=2, speculate=speculate)
    for number in range(8):
        assert [text for text, _ in samples(guessed, number)] == [text for text, _ in samples(talked, number)]
        if speculate == "off":
            for _, done in samples(guessed, number):
                assert done.drafted - done.accepted <= 1  # the end is not counted


@pytest.mark.slow
@pytest.mark.parametrize("speculate", ["off", "prompt"])
def test_forced_tokens_are_drafted_and_accepted(
    tiny: LoadedModel, speculate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, done = Run(tiny).one("hello", format=Format.json_schema(POINT), seed=1, **HOT)
    draft_always(monkeypatch, random.Random(1))
    run = Run(tiny, speculate=speculate)
    tokens, guessed = run.one("hello", format=Format.json_schema(POINT), seed=1, **HOT)
    assert tokens == plain
    assert guessed.reason == done.reason
    assert guessed.accepted >= 10
    assert guessed.drafted - guessed.accepted <= 1 or speculate == "prompt"  # the end is not counted
    assert len(run.rows) == guessed.eval_count - guessed.accepted


@pytest.mark.slow
def test_recurrent_layers_remove_drafts_of_formats_too(
    recurrent: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Run(recurrent).one("hello", format=Format.json_schema(POINT), seed=1, **HOT)[0]
    draft_always(monkeypatch, random.Random(5))
    run = Run(recurrent)
    tokens, done = run.one("hello", format=Format.json_schema(POINT), seed=1, **HOT)
    assert tokens == plain
    assert done.drafted >= done.accepted > 0
    if done.reason == "stop":
        jsonschema.validate(json.loads(run.text(0)), POINT)


def test_an_answer_ends_with_its_format_without_another_pass(tiny: LoadedModel) -> None:
    run = Run(tiny)
    tokens, done = run.one("hello", format=Format.choice(["ab"]), logprobs=True)
    assert (run.text(0), done.reason, done.eval_count, len(run.rows)) == ("ab", "stop", 2, 2)
    assert done.ending == []
    assert len(tokens) == 2


def test_a_cut_answer_reports_it(tiny: LoadedModel) -> None:
    run = Run(tiny)
    _, done = run.one("hello", format=Format.json_schema(POINT), **(HOT | {"num_predict": 3, "seed": 1}))
    assert done.reason == "length"


def test_the_end_token_ends_an_answer_even_with_ignore_eos(tiny: LoadedModel) -> None:
    run = Run(tiny)
    _, done = run.one("hello", format=Format.regex("a*"), ignore_eos=True, **HOT, seed=5)
    assert (set(run.text(0)) | {"a"}, done.reason) == ({"a"}, "stop")


def test_log_probabilities_ignore_the_format(tiny: LoadedModel) -> None:
    """They are not normalised over the allowed tokens."""
    run = Run(tiny)
    run.submit(0, "hello", format=Format.choice(["ab"]), logprobs=True, top_logprobs=3)
    run.finish()
    chunks = [event for event in run.events[0] if isinstance(event, Chunk)]
    found = [entry for chunk in chunks for entry in chunk.logprobs]
    assert [entry.token for entry in found] == ["a", "b"]
    assert all(entry.logprob < -0.1 for entry in found)
    assert all(entry.top[0].logprob > entry.logprob for entry in found)


def test_stop_strings_end_answers_in_formats_too(tiny: LoadedModel) -> None:
    run = Run(tiny)
    _, done = run.one("hello", format=Format.regex("hello world"), stop=["o w"])
    assert (run.text(0), done.reason, done.stop) == ("hell", "stop", "o w")


def test_excessive_format_fails_only_its_request(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tiny)
    run.submit(0, "hello", format=Format.json_schema(POINT), seed=1, **HOT)
    run.submit(1, "hello", format=Format.choice(["ab"]), seed=1, **HOT)
    run.engine.step()
    (victim,) = [sequence for sequence in run.engine.scheduler if sequence.id == 0]
    constraint: RemoteConstraint = victim.constraint  # type: ignore[attr-defined]
    constraint.offer(tiny.tokenizer.encode("~", add_special=False)[0])  # breaks the constraint
    run.finish()
    failed = run.events[0][-1]
    assert isinstance(failed, Failed)
    assert failed.kind == "FormatError"
    assert "format cannot be followed" in failed.message
    assert run.text(1) == "ab"
