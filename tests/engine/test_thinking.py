"""Thinking ends after its budget, or when it is told to, and the answer begins."""

from __future__ import annotations

import random
from typing import Any

import pytest

from puna.chat.answers.family import Reading
from puna.chat.answers.parts import Tags
from puna.chat.answers.registry import FAMILIES, PLAIN
from puna.chat.answers.tools import tools_of
from puna.engine.requests import FittedPrompt
from puna.engine.text import TextStream, TokenText
from puna.engine.thinking import ThoughtLimit
from puna.grammar.format import Format
from puna.model.load import LoadedModel
from puna.options import Options
from puna.protocol import Chunk, Generate
from puna.tokenizer import Tokenizer
from tests.chat.answers.reading import TOOLS
from tests.engine.drafting import draft_always
from tests.engine.runs import Run

TAGS = Tags("<think>", "</think>")
BEGUN = Reading(PLAIN, TAGS, prompt="<think>")
PROMPT = "once upon a time"
HOT: dict[str, Any] = {"temperature": 1.2, "top_k": 0, "top_p": 1.0, "seed": 7}


def think(run: Run, number: int, budget: int | None, prompt: str = PROMPT, **more: Any) -> None:
    """Submit a request whose prompt ends inside thinking."""
    options = Options.merge({"temperature": 0, "num_predict": 24}, more.pop("options", {}))
    request = Generate(id=number, prompt=prompt, options=options, ignore_eos=True, **more)
    tokens = run.engine.loaded.tokenizer.encode(prompt)
    fitted = FittedPrompt(tokens, reading=BEGUN, format=request.format, budget=budget)
    run.engine.submit(request, run._sink(number), fitted)


def thought(run: Run, number: int) -> str:
    return "".join(event.thinking for event in run.events[number] if isinstance(event, Chunk))


def closing(loaded: LoadedModel) -> list[int]:
    return loaded.tokenizer.encode("</think>", add_special=False, first=False)


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_thinking_has_exactly_its_budget_and_the_answer_follows(model: LoadedModel, budget: int) -> None:
    free = Run(model)
    think(free, 0, None)
    free.finish()
    run = Run(model)
    think(run, 0, budget)
    run.finish()
    closed = closing(model)
    tokens = run.tokens(0)
    assert tokens[:budget] == free.tokens(0)[:budget]
    assert tokens[budget : budget + len(closed)] == closed
    assert run.done(0).thought == budget
    assert free.done(0).thought == 24
    assert "</think>" not in run.text(0) + thought(run, 0)
    prompt = model.tokenizer.encode(PROMPT) + tokens[: budget + len(closed)]
    continued, _ = Run(model).one(prompt, num_predict=24 - budget - len(closed))
    assert tokens[budget + len(closed) :] == continued


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_thinking_ends_when_it_is_told_to(tiny: LoadedModel, steps: int) -> None:
    run = Run(tiny)
    think(run, 0, None, samples=2, options={"num_predict": 24, **HOT})
    think(run, 1, None)
    for _ in range(steps):
        run.engine.step()
    run.engine.finish_thinking(0)
    run.engine.finish_thinking(0)  # again, which changes nothing
    run.finish()
    closed = closing(tiny)
    for sample in range(2):
        count = run.done(0, sample).thought
        assert count <= max(steps, 1)
        assert run.tokens(0, sample)[count : count + len(closed)] == closed
    assert run.done(1).thought == 24


def test_thinking_of_a_request_on_its_way_ends_at_its_beginning(tiny: LoadedModel) -> None:
    run = Run(tiny)
    run.engine.finish_thinking(3)
    run.engine.step()
    think(run, 3, None)
    run.finish()
    assert run.done(3).thought == 0
    run = Run(tiny)
    think(run, 3, 5)
    run.finish()
    assert run.done(3).thought == 5


def test_samples_batches_and_preemptions_change_no_thought(tiny: LoadedModel) -> None:
    alone, rows = [], 0
    for number in range(4):
        run = Run(tiny)
        think(run, number, 3 + number, f"{PROMPT} {number}", options={"num_predict": 20, **HOT})
        run.finish()
        alone.append((run.tokens(number), run.done(number).thought))
        rows += sum(run.rows)
    crowded = Run(tiny, capacity=80)
    for number in range(4):
        think(crowded, number, 3 + number, f"{PROMPT} {number}", options={"num_predict": 20, **HOT})
    crowded.finish()
    assert [(crowded.tokens(n), crowded.done(n).thought) for n in range(4)] == alone
    assert sum(crowded.rows) > rows  # what was preempted is evaluated again


def test_drafts_change_no_thought(tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Run(tiny)
    think(plain, 0, 6, options={"num_predict": 30, **HOT})
    plain.finish()
    draft_always(monkeypatch, random.Random(2))
    for speculate in ("off", "prompt"):
        run = Run(tiny)
        think(run, 0, 6, options={"num_predict": 30, "speculate": speculate, **HOT})
        run.finish()
        assert run.tokens(0) == plain.tokens(0)
        assert (run.text(0), thought(run, 0)) == (plain.text(0), thought(plain, 0))
        assert run.done(0).accepted >= len(closing(tiny)) - 1  # the closing tag is drafted
        assert len(run.rows) < 30


@pytest.mark.slow
def test_a_format_applies_after_a_closed_thought(tiny: LoadedModel) -> None:
    for budget in (0, 4):
        run = Run(tiny)
        think(run, 0, budget, format=Format.regex("(yes|no), really"), options={"num_predict": 60, **HOT})
        run.finish()
        assert run.text(0) in ("yes, really", "no, really")
        assert run.done(0).thought == budget


def test_log_probabilities_of_a_closing_tag_are_the_models(tiny: LoadedModel) -> None:
    found = []
    for sampled in (False, True):
        run = Run(tiny)
        think(run, 0, 3, logprobs=True, sampled_logprobs=sampled)
        run.finish()
        entries = [entry for event in run.events[0] if isinstance(event, Chunk) for entry in event.logprobs]
        assert len(entries) == run.done(0).eval_count
        found.append([entry.logprob for entry in entries[3 : 3 + len(closing(tiny))]])
    assert found[0] == found[1]


def test_text_already_closed_has_no_thought(tiny: LoadedModel) -> None:
    run = Run(tiny)
    request = Generate(id=0, prompt=PROMPT, options=Options(temperature=0, num_predict=9), ignore_eos=True)
    reading = Reading(PLAIN, TAGS, prompt="<think>\n\n</think>")
    tokens = tiny.tokenizer.encode(PROMPT)
    run.engine.submit(request, run._sink(0), FittedPrompt(tokens, reading=reading, budget=0))
    run.finish()
    assert (run.done(0).thought, thought(run, 0)) == (0, "")


class Spoken:
    """An answer fed text by text, with its forced tokens as text."""

    def __init__(self, tokenizer: Tokenizer, reading: Reading, budget: int | None) -> None:
        self.tokenizer = tokenizer
        self.stream = TextStream((), reading)
        self.thinking = ThoughtLimit(self.stream, reading, tokenizer, budget)
        self.text = ""

    def say(self, text: str) -> None:
        self.stream.feed(TokenText(-1, text.encode()))
        self.thinking.follow(-1)

    def close(self) -> str:
        """Feed the forced tokens, and return their text."""
        said = b""
        while self.thinking.forced:
            token = self.thinking.forced[0]
            said += self.tokenizer.piece(token)
            self.text += self.stream.feed(TokenText(token, self.tokenizer.piece(token))).text
            self.thinking.follow(token)
        return said.decode()


def test_a_tag_that_has_begun_is_completed_and_is_no_thought(tiny: LoadedModel) -> None:
    spoken = Spoken(tiny.tokenizer, BEGUN, 3)
    for text in ("a", "</th", "i"):
        spoken.say(text)
    assert spoken.thinking.tokens == 3
    assert spoken.close() == "nk>"
    assert spoken.thinking.tokens == 1
    spoken = Spoken(tiny.tokenizer, BEGUN, 9)
    for text in ("a", "</th", "b", "</think>", "c"):
        spoken.say(text)
    assert (spoken.thinking.tokens, list(spoken.thinking.forced)) == (3, [])


HARMONY, GLIMMER, SOLAR = FAMILIES["harmony"], FAMILIES["glimmer"], FAMILIES["solar-open"]
OFFERED = tools_of(TOOLS)
ANALYSIS, SELF = "<|channel|>analysis<|message|>", " to=self<|message|>"
NEXT, FINAL = "<|end|><|start|>assistant", "<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    ("reading", "thought", "closings"),
    [
        (Reading(HARMONY), ANALYSIS, [FINAL]),
        (Reading(HARMONY, tools=OFFERED), ANALYSIS, [NEXT, FINAL]),
        (Reading(HARMONY, tools=OFFERED, choice="required"), ANALYSIS, ["<|end|>"]),
        (Reading(GLIMMER), SELF, ["<|eom|><|start|>assistant to=user<|message|>"]),
        (
            Reading(GLIMMER, tools=OFFERED),
            SELF,
            ["<|eom|><|start|>assistant", "<|eom|><|start|>assistant to=user<|message|>"],
        ),
        (Reading(SOLAR), "<|think|>", ["<|end|><|begin|>assistant<|content|>"]),
        (
            Reading(SOLAR, tools=OFFERED),
            "<|think|>",
            ["<|end|><|begin|>assistant", "<|end|><|begin|>assistant<|content|>"],
        ),
        (Reading(SOLAR, tools=OFFERED, choice="required"), "<|think|>", ["<|end|><|begin|>assistant"]),
        (
            Reading(FAMILIES["gemma4"], Tags("<|channel>thought", "<channel|>")),
            "<|channel>thought",
            ["<channel|>"],
        ),
        (Reading(FAMILIES["qwen3"], TAGS), "<think>", ["</think>"]),
    ],
    ids=lambda value: value.family.name if isinstance(value, Reading) else "",
)
def test_each_family_closes_thinking_in_its_own_words(
    tiny: LoadedModel, reading: Reading, thought: str, closings: list[str]
) -> None:
    spoken = Spoken(tiny.tokenizer, reading, 2)
    for number, expected in enumerate(closings):
        spoken.say(thought)
        if number == 0:
            spoken.say("Hm")
            assert not spoken.thinking.forced
            spoken.say("Hm")
        assert spoken.close() == expected
        assert not spoken.stream.thinking
    assert spoken.thinking.tokens == 2
