"""Measures the gain of speculative decoding, and its cost where there is nothing to gain.

    make bench-speculation                            # a 135M model; writes docs/speculation.json
    python bench/speculation.py [--model 135m/q8_0] [--draft 135m-draft/q8_0 [--right 0.8]] [--streams 1,4]
                                [--tokens 192] [--repetitions 5] [--threads 0] [--cpu]
                                [--output FOLDER]

Weights are random, so the answers are scripted: every token is sampled as usual and then replaced. Runs with
and without speculation alternate; the output are the ratios of their medians.

    edit      the prompt is a source file, the answer the same file with some lines rewritten
    prose     the same prompt, and an answer of other text
    dice      random words: every prefix occurs often, but never predicts the next word

With --draft, a draft model drafts instead of prompt lookup, and is right with the given probability. With
--cpu, for a busy machine, processor time is compared; use --threads 1.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models import random_model
from report import processor
from speculation_report import Result, Run, line, write

from puna.engine.engine import Engine
from puna.engine.events import Done, Event, Generate
from puna.model.load import load_model
from puna.ops import default_backend
from puna.options import Options

Clock = Callable[[], float]

ROOT = Path(__file__).resolve().parents[1]
_PROMPT = 512


def words(path: str) -> list[str]:
    """The text of a file in pieces about as long as tokens."""
    return re.findall(r"\s?\w{1,6}|\s+|[^\w\s]", (ROOT / path).read_text())


def texts(tokens: int, dice: random.Random) -> dict[str, tuple[list[str], list[str]]]:
    """Prompt and answer of each workload, by name."""
    source = words("src/puna/engine/scheduler.py")
    prompt = source[:_PROMPT]
    edited = list(prompt)
    for begin in range(60, len(edited), 120):
        edited[begin : begin + 8] = [f"new{dice.randrange(10**6)}" for _ in range(8)]
    few = [f"w{i}" for i in range(12)]
    return {
        "edit": (prompt, edited[:tokens]),
        "prose": (prompt, words("ARCHITECTURE.md")[200 : 200 + tokens]),
        "dice": (dice.choices(few, k=_PROMPT), dice.choices(few, k=tokens)),
    }


class Scripted:
    """A sampler that samples as usual but then returns a scripted token."""

    def __init__(self, sampler: Any, tokens: list[int]) -> None:
        self._sampler = sampler
        self._tokens = iter(tokens)

    def sample(self, logits: Any) -> int:
        self._sampler.sample(logits)
        return next(self._tokens)

    def accept(self, token: int) -> None:
        self._sampler.accept(token)


class Runner:
    """Runs scripted texts on one engine, with several parallel streams."""

    def __init__(
        self, path: Path, streams: int, tokens: int, draft: Path | None, right: float, clock: Clock
    ) -> None:
        self.loaded = load_model(path, draft=draft)
        self.engine = Engine(
            self.loaded,
            context=_PROMPT + tokens + 8,
            parallel=streams,
            speculate="draft" if draft else "prompt",
        )
        self._streams = streams
        self._ids: dict[str, int] = {}
        self._text: list[int] = []
        self._right = right
        self._clock = clock
        self._dice = random.Random(3)
        if draft:
            self._script_drafts()

    def _script_drafts(self) -> None:
        """Make the draft model compute as usual, then return the script's next token or a wrong one."""
        draft_model = self.engine._speculation._draft_model
        assert draft_model is not None
        forward = draft_model._forward

        def scripted(parts: Any) -> list[int]:
            found = forward(parts)
            for index, (held, _) in enumerate(parts):
                if len(held.tokens) < len(self._text) and self._dice.random() < self._right:
                    found[index] = self._text[len(held.tokens)]
            return found

        draft_model._forward = scripted  # type: ignore[method-assign]

    def run(self, prompt: list[str], answer: list[str], speculate: str | None) -> tuple[float, int, int]:
        """Seconds of decoding, and tokens drafted and accepted."""
        ended: list[Done] = []

        def sink(event: Event) -> None:
            if isinstance(event, Done):
                ended.append(event)

        script = self._tokens(answer)
        self._text = self._tokens(prompt) + script
        options = Options(temperature=0.0, num_predict=len(script), speculate=speculate)
        for number in range(self._streams):
            request = Generate(id=number, prompt=self._tokens(prompt), options=options, ignore_eos=True)
            self.engine.submit(request, sink)
        for sequence in self.engine._incoming:
            sequence.sampler = Scripted(sequence.sampler, script)  # type: ignore[assignment]
        while any(not sequence.generated for sequence in self.engine.scheduler):
            self.engine.step()
        begin = self._clock()
        while len(ended) < self._streams:
            self.engine.step()
        took = self._clock() - begin
        return took, sum(done.drafted for done in ended), sum(done.accepted for done in ended)

    def _tokens(self, text: list[str]) -> list[int]:
        """One token for each word, independent of the model's vocabulary."""
        most = self.loaded.tokenizer.vocab_size
        return [self._ids.setdefault(word, 300 + len(self._ids) % (most - 400)) for word in text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="135m/q8_0", help="SHAPE/MIX as in bench/models.py")
    parser.add_argument("--draft", default="", help="SHAPE/MIX of a draft model")
    parser.add_argument("--right", type=float, default=0.8, help="how often the draft model is right")
    parser.add_argument("--streams", default="1,4")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--output", type=Path, help="folder for the results")
    chosen = parser.parse_args()
    clock = time.thread_time if chosen.cpu else time.perf_counter
    default_backend().set_threads(chosen.threads)
    folder = ROOT / "build" / "bench-models"
    path = random_model(*chosen.model.split("/"), folder)
    draft = random_model(*chosen.draft.split("/"), folder) if chosen.draft else None
    results = []
    for streams in map(int, chosen.streams.split(",")):
        runner = Runner(path, streams, chosen.tokens, draft, chosen.right, clock)
        for name, (prompt, answer) in texts(chosen.tokens, random.Random(7)).items():
            seconds: dict[str | None, list[float]] = {"off": [], None: []}
            drafted = accepted = 0
            for repetition in range(chosen.repetitions + 1):
                for speculate in ("off", None):
                    took, drafted, accepted = runner.run(prompt, answer, speculate)
                    if repetition:
                        seconds[speculate].append(took)
            results.append(Result(
                streams, name, streams * chosen.tokens, seconds["off"], seconds[None], drafted, accepted
            ))  # fmt: skip
            print(line(results[-1]), flush=True)
        runner.engine.close()
    if chosen.output:
        write(Run(
            chosen.model, chosen.draft, default_backend().threads(),
            "processor time" if chosen.cpu else "time", processor(), results,
        ), chosen.output)  # fmt: skip


if __name__ == "__main__":
    main()
