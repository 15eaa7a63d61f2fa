"""Runs with and without drafted tokens, which must give the same answers."""

from __future__ import annotations

import random
from typing import Any

import pytest

from puna.engine.drafting.payoff import Cost, StepEstimate
from puna.engine.drafting.speculation import PromptLookup
from puna.model.load import LoadedModel
from tests.engine.runs import Run

PROMPTS = [f"{'hello world ' * (i % 3)}once upon a time {i}" for i in range(6)]


class Oracle:
    """A source of drafts that continues the texts it knows; with probability `lies`, a token is wrong."""

    def __init__(self, lies: float) -> None:
        self.lies = lies
        self.texts: list[list[int]] = []
        self.dice = random.Random(5)

    def look_up(self, lookup: PromptLookup, most: int) -> tuple[int, list[int]]:
        keys = lookup._keys
        for text in self.texts:
            if keys == text[: len(keys)]:
                tokens = text[len(keys) : len(keys) + most]
                return 4, [(t + 1) % 256 if self.dice.random() < self.lies else t for t in tokens]
        return 2, [self.dice.randrange(256) for _ in range(most)]


def draft_always(monkeypatch: pytest.MonkeyPatch, dice: random.Random) -> None:
    """Make every stream draft in every step, at times fewer tokens than it could, whether or not it pays."""
    monkeypatch.setattr(Cost, "known", True)
    monkeypatch.setattr(Cost, "step_s", 0.01)
    monkeypatch.setattr(Cost, "measured", lambda cost, drafts, seconds: None)

    def add(estimate: StepEstimate, candidates: Any, **_: Any) -> list[int]:
        most = [candidate.most for candidate in candidates]
        return [count if dice.random() < 0.7 else dice.randint(0, count) for count in most]

    monkeypatch.setattr(StepEstimate, "add", add)


def drafted(run: Run) -> tuple[int, int]:
    """Return the numbers of drafted and accepted tokens over all requests."""
    done = [run.done(number) for number in range(len(PROMPTS))]
    return sum(one.drafted for one in done), sum(one.accepted for one in done)


def answers(loaded: LoadedModel, speculate: str, *, count: int = 6, **settings: Any) -> Run:
    """Run requests that arrive one after another while others are running, some greedy and some not."""
    engine = {
        name: settings.pop(name) for name in ("context", "capacity", "parallel", "draft") if name in settings
    }
    run = Run(loaded, speculate=speculate, **engine)
    for number in range(count):
        sampling = {"temperature": 0.0 if number % 2 else 1.1, "seed": number, "top_k": 0, "num_predict": 20}
        run.submit(number, PROMPTS[number], **sampling | settings)
        if number % 3 == 2:
            run.engine.step()
            run.engine.step()
    run.finish()
    return run


def compare(loaded: LoadedModel, oracle: Oracle | None, *, mode: str = "draft", **settings: Any) -> Run:
    """Run the same requests without and with drafts, and compare; the first run tells the oracle the answers.

    Without an oracle, `mode` names the source of drafts.
    """
    plain = answers(loaded, "off", **settings)
    count = len(plain.events)
    for number in range(count if oracle is not None else 0):
        assert oracle is not None
        oracle.texts.append([*loaded.tokenizer.encode(PROMPTS[number]), *plain.tokens(number)])
    guessed = answers(loaded, "prompt" if oracle is not None else mode, **settings)
    for number in range(count):
        assert guessed.tokens(number) == plain.tokens(number)
        assert guessed.text(number) == plain.text(number)
        mine, theirs = guessed.done(number), plain.done(number)
        for name in ("reason", "stop", "eval_count", "prompt_eval_count", "shifted", "truncated"):
            assert getattr(mine, name) == getattr(theirs, name)
        assert theirs.drafted == theirs.accepted == 0
        assert mine.accepted <= mine.drafted
    return guessed
