"""Measure demo-audio: `make demo-hearing-evaluation`. Runs the exported files through Puna's own engine.

Writes demo/hearing/evaluation.json and the tables of demo/hearing/README.md: for each kind of question, the
share of exact answers about clips in voices that were not in the training. Needs espeak-ng.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import puna
from bench.pages import Report
from demo.hearing.clips import recorded, silent
from demo.hearing.questions import Asked, blind, questions
from demo.hearing.speech import NOTHING, UNHEARD, UNHEARD_VOICES, Said, any_said, any_voice, speak
from puna.audio.recording import Recording
from puna.demo import path as bundled_path
from puna.demo import projector_path

HEARING_README = Path(__file__).with_name("README.md")
#: Names of the kinds of questions in the table.
MEANINGS = {
    "said": "what was said",
    "digits": "which digits; that there are none",
    "count": "how many digits",
    "command": "which command; that there is none",
    "anything": "whether anyone speaks",
    "cannot tell": "what such clips do not tell",
    "no recording": "anything, without a recording",
}
#: Names of what clips have in them.
CONTENTS = {
    "digits": "one to five digits", "command": "a command", "other": "words it does not know",
    "nothing": "silence or noise",
}  # fmt: skip
#: Names of speeds, in words a minute; the training has 115 to 220.
SPEEDS = {"slow": (90, 115), "usual": (115, 220), "fast": (220, 270)}
_PARALLEL = 16  # requests in a batch


@dataclass(frozen=True, eq=False)
class Case:
    """A question about a recording, or without one."""

    recording: Recording | None
    said: Said
    speed: str
    asked: Asked


def held_out(count: int, seed: int = 0, each: int = 4) -> list[Case]:
    """Record `count` clips in voices that were not in the training, each with up to `each` questions."""
    rng = random.Random(f"evaluation {seed}")
    cases = []
    for number in range(count):
        speed = rng.choices(list(SPEEDS), (1, 4, 1))[0]
        if number % 10 == 0:
            said, recording, speed = NOTHING, silent(rng), ""
        else:
            said = any_said(rng, UNHEARD)
            recording = recorded(speak(said.text, any_voice(rng, UNHEARD_VOICES, SPEEDS[speed])), rng)
        cases += [Case(recording, said, speed, asked) for asked in questions(said, rng, each)]
        if rng.random() < 0.05:
            cases.append(Case(None, NOTHING, "", blind(rng)))
    return cases


def answers(model: puna.Model, cases: Sequence[Case]) -> list[str]:
    """Return the answer to each question, asked as the first one about its recording."""

    def answer(case: Case) -> str:
        message: dict[str, Any] = {"role": "user", "content": case.asked.question}
        if case.recording is not None:
            message["audio"] = [case.recording.samples / 32768]
        return model.chat([message], temperature=0, num_predict=40).text

    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(answer, cases))


def evaluate(path: Path, projector: Path, clips: int) -> dict[str, Any]:
    """Count the exact answers for each kind of question, contents and speed, and collect some failures."""
    cases = held_out(clips)
    with puna.load(path, projector=projector, parallel=_PARALLEL) as model:
        given = answers(model, cases)
    right: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    failures = []
    for case, answer in zip(cases, given, strict=True):
        asked, exact = case.asked, answer == case.asked.answer
        right["kinds"][asked.kind].append(exact)
        if asked.kind == "said":
            right["contents"][case.said.kind].append(exact)
            if case.said.kind in ("digits", "command"):
                right["speeds"][case.speed].append(exact)
        if not exact:
            failures.append([asked.kind, asked.question, asked.answer, answer])

    def shares(name: str, order: Sequence[str]) -> dict[str, dict[str, float]]:
        return {
            each: {"questions": len(found), "exact": sum(found) / len(found)}
            for each in order
            if (found := right[name][each])
        }

    return {
        "file_megabytes": round((path.stat().st_size + projector.stat().st_size) / 1e6, 2),
        "clips": clips,
        "questions": len(cases),
        "exact": 1 - len(failures) / len(cases),
        "kinds": shares("kinds", list(MEANINGS)),
        "contents": shares("contents", list(CONTENTS)),
        "speeds": shares("speeds", list(SPEEDS)),
        "failures": failures[:40],
    }


def table(results: dict[str, Any]) -> str:
    """Format the table of the model's own README."""

    def line(text: str, found: dict[str, float]) -> str:
        return f"| {text} | {100 * found['exact']:.1f} % | {found['questions']} |"

    text = ["| question | answered exactly | of |", "|---|---:|---:|"]
    text += [line(MEANINGS[kind], found) for kind, found in results["kinds"].items()]
    text.append(f"| **all** | **{100 * results['exact']:.1f} %** | {results['questions']} |")
    text += [
        "",
        "What was said, by contents and by speed:",
        "",
        "| clip | answered exactly | of |",
        "|---|---:|---:|",
    ]
    text += [line(CONTENTS[kind], found) for kind, found in results["contents"].items()]
    for name, found in results["speeds"].items():
        low, high = SPEEDS[name]
        text.append(line(f"digits and commands at {low} to {high} words a minute", found))
    return "\n".join(text) + "\n"


REPORT = Report(
    Path(__file__).with_name("evaluation.json"), "make demo-hearing-evaluation", dict[str, Any],
    {HEARING_README: table},
)  # fmt: skip


def main() -> None:
    """Evaluate the bundled model, or other files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=bundled_path("demo-audio"))
    parser.add_argument("--tower", type=Path, default=projector_path("demo-audio"))
    parser.add_argument("--clips", type=int, default=150)
    parser.add_argument("--results", type=Path, help="folder for the results (default: beside this program)")
    arguments = parser.parse_args()
    began = time.monotonic()
    results = evaluate(arguments.model, arguments.tower, arguments.clips)
    print(f"{table(results)}\n({time.monotonic() - began:.0f} s)")
    REPORT.write(results, arguments.results)


if __name__ == "__main__":
    main()
