"""Output of the comparison of vision models: lines for the terminal, a table, JSON.

python bench/vision_report.py        # regenerates the table from docs/vision.json
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from pages import DOCS, Report

#: The ratio to llama.cpp to reach.
BAR = 1.5


@dataclass(frozen=True)
class Result:
    """The seconds of one tower and type of its matrices, one value per repetition."""

    tower: str
    kind: str
    text: str  # the text model
    picture: tuple[int, int]  # pixels: width, height
    tokens: int  # of the prompt
    setting: str  # of llama.cpp: the faster one
    our_tower: list[float]
    their_tower: list[float]
    our_first: list[float]  # until the first token
    their_first: list[float]
    others: dict[str, tuple[float, float]]  # llama.cpp's times by setting tried: tower, first token

    @property
    def tower_ratio(self) -> float:
        return statistics.median(self.their_tower) / statistics.median(self.our_tower)

    @property
    def first_ratio(self) -> float:
        return statistics.median(self.their_first) / statistics.median(self.our_first)


@dataclass
class Run:
    """All results of a run, with versions and machine."""

    versions: str
    threads: int
    processor: str
    text_tokens: int
    one_pass: dict[str, float]  # by type: speedup of products when four images share a pass
    results: list[Result] = field(default_factory=list)


def merged(run: Run) -> Run:
    """Return `run` with its missing rows taken from docs/."""
    old = REPORT.read().run.results if REPORT.path.exists() else []
    present = {(result.tower, result.kind) for result in run.results}
    run.results += [result for result in old if (result.tower, result.kind) not in present]
    run.results.sort(key=lambda result: (result.tower, result.kind))
    return run


def seconds(times: Sequence[float]) -> str:
    spread = f" ({min(times):.2f} to {max(times):.2f})" if len(times) > 1 else ""
    return f"{statistics.median(times):.2f} s{spread}"


def met(ratio: float) -> str:
    return f"**{ratio:.2f}** {'✓' if ratio >= BAR else '✗'}"


def line(result: Result) -> str:
    return (
        f"{result.tower} {result.kind}, {result.tokens} tokens, llama.cpp with {result.setting}: "
        f"tower puna {seconds(result.our_tower)}, llama.cpp {seconds(result.their_tower)}, "
        f"ratio {result.tower_ratio:.2f}; first token puna {seconds(result.our_first)}, "
        f"llama.cpp {seconds(result.their_first)}, ratio {result.first_ratio:.2f}; others {result.others}"
    )


def table(run: Run) -> str:
    """Format the results as Markdown."""
    counts = [len(each.our_tower) for each in run.results]
    text = [
        f"Medians (min to max) of {min(counts)} to {max(counts)} alternating runs. {run.versions}, "
        f"{run.threads} threads each, {run.processor}. The bar is {BAR} times the "
        "speed of llama.cpp, which runs with flash attention or without, whichever is faster with CLIP-L.",
        "",
        "| tower | its matrices | picture | Puna | llama.cpp | ratio "
        "| Puna, first token | llama.cpp, first token | ratio |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    text += [
        f"| {each.tower} | {each.kind} | {each.picture[0]} x {each.picture[1]} | {seconds(each.our_tower)} "
        f"| {seconds(each.their_tower)} | {met(each.tower_ratio)} | {seconds(each.our_first)} "
        f"| {seconds(each.their_first)} | {met(each.first_ratio)} |"
        for each in run.results
    ]
    gains = " and ".join(f"{gain:.2f} times ({kind})" for kind, gain in run.one_pass.items())
    text += [
        "",
        "The matrix products of four CLIP-L images that share a pass, instead of being read one after "
        f"another, are {gains} as fast.",
    ]
    return "\n".join(text) + "\n"


REPORT = Report(DOCS / "vision.json", "make bench-vision", Run, {DOCS / "vision.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
