"""Measure demo-vision: `make demo-vision-evaluation`. Runs the exported file through Puna's own engine.

Writes demo/vision/evaluation.json and the table of demo/vision/README.md: for each kind of
question, the share of exact answers on pictures that were not in the training.
"""

from __future__ import annotations

import argparse
import io
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
from demo.vision.questions import Asked, blind, questions
from demo.vision.scenes import Scene, any_scene
from puna.demo import path as bundled_path

VISION_README = Path(__file__).with_name("README.md")
#: Names of the kinds of questions in the table.
MEANINGS = {
    "describe": "what is in the picture",
    "count": "how many shapes there are",
    "count some": "how many of a shape or of a colour",
    "colour": "the colour of a shape or of what is printed; that there is none",
    "shape": "which shape has a colour",
    "position": "where a shape is",
    "exists": "whether there is such a shape",
    "background": "the colour of the background",
    "number": "a printed number of one or two digits; that there is none",
    "word": "what it says: a number, nothing, or that words cannot be told",
    "bars": "how many bars a chart has",
    "tallest": "which bar is the tallest: that it cannot tell",
    "cannot tell": "what nobody can know from such pictures",
    "noise": "anything about what only looks like a picture",
    "no picture": "anything, without a picture",
}
_PARALLEL = 16  # requests in a batch


@dataclass(frozen=True)
class Case:
    """A question about a picture, or without one."""

    scene: Scene | None
    asked: Asked


def held_out(count: int, seed: int = 0, each: int = 4) -> list[Case]:
    """Draw `count` pictures that were not in the training, each with up to `each` questions."""
    rng = random.Random(f"evaluation {seed}")
    cases = []
    for _ in range(count):
        scene = any_scene(rng)
        cases += [Case(scene, asked) for asked in questions(scene, rng, each)]
        if rng.random() < 0.05:
            cases.append(Case(None, blind(rng)))
    return cases


def png(scene: Scene) -> bytes:
    """Return a scene's picture as a PNG file."""
    written = io.BytesIO()
    scene.picture.save(written, "PNG")
    return written.getvalue()


def answers(model: puna.Model, cases: Sequence[Case]) -> list[str]:
    """Return the answer to each question, asked as the first one about its picture."""

    def answer(case: Case) -> str:
        message: dict[str, Any] = {"role": "user", "content": case.asked.question}
        if case.scene is not None:
            message["images"] = [png(case.scene)]
        return model.chat([message], temperature=0, num_predict=40).text

    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(answer, cases))


def evaluate(path: Path, pictures: int) -> dict[str, Any]:
    """Count the exact answers for each kind of question, and collect some failures."""
    cases = held_out(pictures)
    with puna.load(path, parallel=_PARALLEL) as model:
        given = answers(model, cases)
    right: dict[str, list[bool]] = defaultdict(list)
    failures = []
    for case, answer in zip(cases, given, strict=True):
        asked = case.asked
        right[asked.kind].append(answer == asked.answer)
        if answer != asked.answer:
            failures.append([asked.kind, asked.question, asked.answer, answer])
    return {
        "file_megabytes": round(path.stat().st_size / 1e6, 2),
        "pictures": pictures,
        "questions": len(cases),
        "exact": 1 - len(failures) / len(cases),
        "kinds": {
            kind: {"questions": len(right[kind]), "exact": sum(right[kind]) / len(right[kind])}
            for kind in MEANINGS
            if right[kind]
        },
        "failures": failures[:40],
    }


def table(results: dict[str, Any]) -> str:
    """Format the table of the model's own README."""
    text = ["| question | answered exactly | of |", "|---|---:|---:|"]
    text += [
        f"| {MEANINGS[kind]} | {100 * found['exact']:.1f} % | {found['questions']} |"
        for kind, found in results["kinds"].items()
    ]
    text.append(f"| **all** | **{100 * results['exact']:.1f} %** | {results['questions']} |")
    return "\n".join(text) + "\n"


REPORT = Report(
    Path(__file__).with_name("evaluation.json"), "make demo-vision-evaluation", dict[str, Any],
    {VISION_README: table},
)  # fmt: skip


def main() -> None:
    """Evaluate the bundled model, or another file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=bundled_path("demo-vision"))
    parser.add_argument("--pictures", type=int, default=600)
    parser.add_argument("--results", type=Path, help="folder for the results (default: beside this program)")
    arguments = parser.parse_args()
    began = time.monotonic()
    results = evaluate(arguments.model, arguments.pictures)
    print(f"{table(results)}\n({time.monotonic() - began:.0f} s)")
    REPORT.write(results, arguments.results)


if __name__ == "__main__":
    main()
