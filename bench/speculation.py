"""Measure the gain of speculative decoding, and its cost if there is nothing to gain.

    make bench-speculation                            # 135M models; writes docs/speculation.json
    python bench/speculation.py [--model 135m/q8_0] [--mtp delta-0.1b-mtp/q8_0] [--draft 135m-draft/q8_0]
                                [--right 0.8] [--streams 1,4] [--tokens 192] [--repetitions 5] [--threads 0]
                                [--cpu] [--output FOLDER]

Weights are random, so the answers are scripted: every token is sampled as usual and then replaced. Runs with
and without speculation alternate; the output is the ratio of their medians.

    edit      the prompt is a source file, the answer the same file with some lines rewritten
    prose     the same prompt, and an answer of other text
    dice      random words: every prefix occurs often, but never predicts the next word

--model drafts by prompt lookup, or with the draft model of --draft. --mtp drafts with its own prediction
heads, only for `prose`. Drafts of heads and draft models are scripted too, and right with the given
probability; for heads, a run with only wrong drafts is added. With --cpu, for a busy machine, processor time
is compared; use --threads 1.
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
from pages import ROOT
from report import processor
from speculation_report import REPORT, Result, Run, line

from puna.engine.drafting.draft_model import DraftModel
from puna.engine.drafting.prediction_heads import PredictionHeads
from puna.engine.engine import Engine
from puna.engine.room import EngineSizes
from puna.model.load import load_model
from puna.ops import default_backend
from puna.options import Options
from puna.protocol import Done, Event, Failed, Generate
from puna.sample import Sampler

Clock = Callable[[], float]

_PROMPT = 512


def words(path: str) -> list[str]:
    """Return the text of a file in pieces about as long as tokens."""
    return re.findall(r"\s?\w{1,6}|\s+|[^\w\s]", (ROOT / path).read_text())


def texts(tokens: int, dice: random.Random) -> dict[str, tuple[list[str], list[str]]]:
    """Return the prompt and answer of each workload, by name."""
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


def script(sampler: Sampler, tokens: list[int]) -> None:
    """Make `sampler` draw as usual, then return the next of `tokens` instead."""
    following = iter(tokens)
    sampler._drawn = lambda *_: next(following)  # type: ignore[method-assign]


class Runner:
    """Runner of scripted texts on one engine, with several parallel streams."""

    def __init__(
        self,
        path: Path,
        mode: str,
        *,
        streams: int,
        tokens: int,
        draft: Path | None,
        right: float,
        clock: Clock,
    ) -> None:
        self.loaded = load_model(path, draft=draft)
        self.engine = Engine(
            self.loaded, EngineSizes(context=_PROMPT + tokens + 8, parallel=streams), speculate=mode
        )
        self._streams = streams
        self._ids: dict[str, int] = {}
        self._text: list[int] = []
        self._right = right
        self._clock = clock
        self._dice = random.Random(3)
        if mode == "draft":
            self._script_drafts()
        elif mode == "mtp":
            self._script_heads()

    def _script_drafts(self) -> None:
        """Make the draft model compute as usual, then return the script's next token or a wrong one."""
        draft_model = self.engine._drafter
        assert isinstance(draft_model, DraftModel)
        forward = draft_model._forward

        def scripted(parts: Any) -> list[int]:
            found = forward(parts)
            for index, (held, _) in enumerate(parts):
                if len(held.tokens) < len(self._text) and self._dice.random() < self._right:
                    found[index] = self._text[len(held.tokens)]
            return found

        draft_model._forward = scripted  # type: ignore[method-assign]

    def _script_heads(self) -> None:
        """Make the heads compute as usual, then draft the script's next token or one it never contains."""
        heads = self.engine._drafter
        assert isinstance(heads, PredictionHeads)
        draft = heads.draft

        def scripted(wanted: Any) -> list[list[int]]:
            found = draft(wanted)
            for (sequence, _), tokens in zip(wanted, found, strict=True):
                expected = self._text[len(sequence.inputs) :]
                tokens[:] = [
                    expected[i] if i < len(expected) and self._dice.random() < self._right else 0
                    for i in range(len(tokens))
                ]
            return found

        heads.draft = scripted  # type: ignore[method-assign]

    def run(self, prompt: list[str], answer: list[str], speculate: str | None) -> tuple[float, int, int]:
        """Return the seconds of decoding, and the numbers of tokens drafted and accepted."""
        ended: list[Done] = []

        def sink(event: Event) -> None:
            if isinstance(event, Failed):
                raise RuntimeError(event.message)
            if isinstance(event, Done):
                ended.append(event)

        answered = self._tokens(answer)
        self._text = self._tokens(prompt) + answered
        options = Options(temperature=0.0, num_predict=len(answered), speculate=speculate)
        for number in range(self._streams):
            request = Generate(id=number, prompt=self._tokens(prompt), options=options, ignore_eos=True)
            self.engine.submit(request, sink)
        for sequence in self.engine._incoming:
            script(sequence.sampler, answered)
        while any(not sequence.generated for sequence in self.engine.scheduler):
            self.engine.step()
        begin = self._clock()
        while len(ended) < self._streams:
            self.engine.step()
        took = self._clock() - begin
        return took, sum(done.drafted for done in ended), sum(done.accepted for done in ended)

    def _tokens(self, text: list[str]) -> list[int]:
        """Return one token for each word, independent of the model's vocabulary."""
        most = self.loaded.tokenizer.vocab_size
        return [self._ids.setdefault(word, 300 + len(self._ids) % (most - 400)) for word in text]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="135m/q8_0", help="SHAPE/MIX as in bench/models.py")
    parser.add_argument(
        "--mtp", default="delta-0.1b-mtp/q8_0", help="SHAPE/MIX of a model with prediction heads"
    )
    parser.add_argument("--draft", default="", help="SHAPE/MIX of a draft model")
    parser.add_argument("--right", type=float, default=0.8, help="probability that a draft is right")
    parser.add_argument("--streams", default="1,4")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--output", type=Path, help="folder for the results")
    chosen = parser.parse_args()
    clock = time.thread_time if chosen.cpu else time.perf_counter
    default_backend().set_threads(chosen.threads)
    path, heads = (random_model(*each.split("/")) for each in (chosen.model, chosen.mtp))
    draft = random_model(*chosen.draft.split("/")) if chosen.draft else None
    often, never = f"heads right in {chosen.right:.0%}", "heads never right"
    lookup = "draft model" if draft else "prompt lookup"
    results = []
    for streams in map(int, chosen.streams.split(",")):
        for source, model, mode, right in (
            (lookup, path, "draft" if draft else "prompt", chosen.right),
            (often, heads, "mtp", chosen.right),
            (never, heads, "mtp", 0.0),
        ):
            runner = Runner(
                model, mode, streams=streams, tokens=chosen.tokens, draft=draft if model is path else None,
                right=right, clock=clock,
            )  # fmt: skip
            for name, (prompt, answer) in texts(chosen.tokens, random.Random(7)).items():
                if mode == "mtp" and name != "prose":
                    continue
                result = measure(runner, prompt, answer, chosen.repetitions)
                results.append(Result(streams, name, streams * chosen.tokens, *result, source))
                print(line(results[-1]), flush=True)
            runner.engine.close()
    if chosen.output:
        REPORT.write(Run(
            chosen.model, default_backend().threads(), "processor time" if chosen.cpu else "time",
            processor(), results,
        ), chosen.output)  # fmt: skip


def measure(
    runner: Runner, prompt: list[str], answer: list[str], repetitions: int
) -> tuple[list[float], list[float], int, int]:
    """Return the seconds without and with drafts, and the tokens drafted and accepted in the last run."""
    seconds: dict[str | None, list[float]] = {"off": [], None: []}
    drafted = accepted = 0
    for repetition in range(repetitions + 1):
        for speculate in ("off", None):
            took, drafted, accepted = runner.run(prompt, answer, speculate)
            if repetition:
                seconds[speculate].append(took)
    return seconds["off"], seconds[None], drafted, accepted


if __name__ == "__main__":
    main()
