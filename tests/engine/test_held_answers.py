"""Answers are held until their formats know which tokens may come next."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from puna.batch import BatchArrays
from puna.chat.answers.family import Reading
from puna.chat.answers.parts import Tags
from puna.chat.answers.registry import PLAIN
from puna.engine import engine
from puna.engine.requests import FittedPrompt
from puna.engine.sequence import Generation
from puna.grammar.compiler import client
from puna.grammar.format import Format
from puna.model.load import LoadedModel
from puna.options import Options
from puna.protocol import Generate
from tests.engine.drafting import draft_always
from tests.engine.runs import Run, change_logits
from tests.processes import children
from tests.waiting import PATIENCE_S

HOT: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "seed": 3}
#: No token is forced, so that nothing is drafted.
LETTERS = Format.regex("[a-z]{40}")
FORCED = Format.regex("(a|b) story once upon a time, hello world")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold only answers of formats that are `silent`, also on a busy machine, and draft for all."""
    monkeypatch.setattr(engine, "_MASK_PATIENCE_S", PATIENCE_S)
    monkeypatch.setattr(client, "_SLOW_S", PATIENCE_S)


@contextmanager
def silent(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Suspend all grammar processes within the block."""
    stopped = []
    for child in children("grammar/compiler"):
        with suppress(psutil.NoSuchProcess):  # it has ended in the meantime
            child.suspend()
            stopped.append(child)
    with patch.context() as here:
        here.setattr(engine, "_MASK_PATIENCE_S", 0.001)
        try:
            yield
        finally:
            for process in stopped:
                with suppress(psutil.NoSuchProcess):
                    process.resume()


def sequence_of(run: Run, number: int = 0) -> Generation:
    (found,) = [each for each in run.engine.scheduler if each.id == number]
    assert isinstance(found, Generation)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 5])
def test_a_held_answer_leaves_the_batch_and_continues_where_it_was(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    plain = Run(tiny)
    expected, _ = plain.one("hello", format=LETTERS, **HOT)
    run = Run(tiny)
    run.submit(0, "hello", format=LETTERS, **HOT)
    for _ in range(steps):
        run.engine.step()
    run.submit(1, "once upon a time", **HOT)
    with silent(monkeypatch):
        while 1 not in run.ended:
            run.engine.step()
        assert sequence_of(run).held is not None
        assert len(run.tokens(0)) == steps
    run.finish()
    assert run.tokens(0) == expected
    other = Run(tiny)
    other.one("once upon a time", **HOT)
    assert run.tokens(1) == other.tokens(0)
    evaluated = sum(plain.rows) + sum(other.rows) - run.done(1).cached
    assert sum(run.rows) == evaluated  # nothing is evaluated twice


@pytest.mark.slow
def test_scores_of_a_held_answers_prompt_are_sent_once(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"format": LETTERS, "prompt_logprobs": True, "progress": True, **HOT}
    plain = Run(tiny)
    expected, _ = plain.one("hello once upon", **settings)
    run = Run(tiny)
    run.submit(0, "hello once upon", **settings)
    with silent(monkeypatch):
        for _ in range(3):
            run.engine.step()
        assert sequence_of(run).held is not None
    run.finish()
    assert run.tokens(0) == expected
    assert run.scored(0) == plain.scored(0)
    assert [type(event) for event in run.events[0]] == [type(event) for event in plain.events[0]]


@pytest.mark.slow
def test_a_draft_ends_where_the_format_is_not_ready(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = Run(tiny).one("hello", format=FORCED, **HOT, num_predict=20)
    draft_always(monkeypatch, random.Random(1))
    run = Run(tiny)
    run.submit(0, "hello", format=FORCED, **HOT, num_predict=20)
    run.engine.step()
    assert len(run.tokens(0)) == 1
    decode = run.engine._answers.decode
    decoded: list[int] = []

    with monkeypatch.context() as patch, ExitStack() as silence:

        def silence_after_two(sequence: Generation, logits: NDArray[np.float32], token: int) -> int | None:
            decoded.append(token)
            if len(decoded) == 2:
                silence.enter_context(silent(monkeypatch))
            return decode(sequence, logits, token)

        patch.setattr(run.engine._answers, "decode", silence_after_two)
        run.engine.step()
        assert len(run.tokens(0)) == 3
        assert sequence_of(run).held is not None
        assert sequence_of(run).waiting == 0
    run.finish()
    assert run.tokens(0) == expected
    assert run.leaked() == 0


@pytest.mark.slow
def test_an_answer_preempted_while_held_continues(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = Run(tiny).one("hello", format=LETTERS, **HOT)
    run = Run(tiny)
    run.submit(0, "hello", format=LETTERS, **HOT)
    for _ in range(4):
        run.engine.step()
    with silent(monkeypatch):
        run.engine.step()
        assert sequence_of(run).held is not None
        run.engine.scheduler._preempt(sequence_of(run))
    run.finish()
    assert run.tokens(0) == expected


def test_an_answer_cancelled_while_held_leaves_the_engine(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tiny)
    run.submit(0, "hello", format=LETTERS, **HOT)
    with silent(monkeypatch):
        run.engine.step()
        assert sequence_of(run).held is not None
        run.engine.cancel(0)
        run.finish()
    assert run.events[0] == []
    assert run.leaked() == 0


def test_a_token_that_the_format_rejects_is_drawn_again(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token " the" ends the thinking and begins the answer with "he", which the format does not allow."""
    (the,), (end,), (one,) = (
        tiny.tokenizer.encode(text, add_special=False, first=False) for text in (" the", " t", "1")
    )

    def said(logits: NDArray[np.float32], batch: BatchArrays) -> NDArray[np.float32]:
        logits = np.full_like(logits, -20.0)
        logits[:, [the, end, one]] = 20.0, 10.0, 5.0
        return logits

    change_logits(monkeypatch, tiny, said)
    run, prompt = Run(tiny), tiny.tokenizer.encode("hello")
    options = Options.merge({"temperature": 0, "num_predict": 12}, {})
    request = Generate(id=0, prompt=prompt, format=Format.regex("[0-9]{2}"), options=options)
    reading = Reading(PLAIN, Tags("<", " t"), "<")
    run.engine.submit(request, run._sink(0), FittedPrompt(prompt, reading=reading, format=request.format))
    run.finish()
    assert (run.tokens(0), run.done(0).reason) == ([end, one, one], "stop")
    assert sum(run.rows) == len(prompt) + 2
