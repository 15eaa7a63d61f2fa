"""Output of the comparison of embedding speed: lines for the terminal, a table, JSON.

python bench/embedding_report.py        # regenerates the table from docs/embedding.json
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from pages import DOCS, Report
from report import spread

#: The ratio to reach, to the faster of the others.
BAR = 1.5


@dataclass(frozen=True)
class Result:
    """The texts per second of one type of file, one value per repetition.

    Cosines are the smallest between a vector and that of sentence-transformers in float32.
    """

    kind: str
    ours: list[float]
    llama_cpp: list[float]
    transformers: list[float]
    llama_cpp_setting: str
    transformers_setting: str
    cosine: float
    llama_cpp_cosine: float

    @property
    def ratio(self) -> float:
        """The ratio to the faster of the others."""
        better = max(map(statistics.median, (self.llama_cpp, self.transformers)))
        return statistics.median(self.ours) / better


@dataclass
class Run:
    """All results of a run, with versions and machine."""

    versions: str
    threads: int
    processor: str
    texts: int
    words: tuple[int, int]  # minimum and maximum per text
    results: list[Result] = field(default_factory=list)


def line(result: Result) -> str:
    return (
        f"{result.kind:>5}  puna {spread(result.ours)}  llama.cpp {spread(result.llama_cpp)} "
        f"({result.llama_cpp_setting})  sentence-transformers {spread(result.transformers)} "
        f"({result.transformers_setting})  ratio {result.ratio:.2f}, bar {BAR} "
        f"{'met' if result.ratio >= BAR else 'MISSED'}; "
        f"cosine {result.cosine:.6f}, llama.cpp's {result.llama_cpp_cosine:.6f}"
    )


def table(run: Run) -> str:
    """Format the results as Markdown."""
    text = [
        f"Texts per second, for {run.texts} texts of {run.words[0]} to {run.words[1]} words in one call: "
        f"median (min to max) of {len(run.results[0].ours)} alternating runs. {run.versions}, {run.threads} "
        f"threads each, {run.processor}. sentence-transformers computes in float32 in both rows; a cosine is "
        "the least to its vectors.",
        "",
        "| file | Puna | llama.cpp | sentence-transformers | ratio to the faster | bar | cosine | its |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    text += [
        f"| {each.kind} | {spread(each.ours)} | {spread(each.llama_cpp)} | {spread(each.transformers)} "
        f"| **{each.ratio:.2f}** | {BAR} {'✓' if each.ratio >= BAR else '✗'} | {each.cosine:.5f} "
        f"| {each.llama_cpp_cosine:.5f} |"
        for each in run.results
    ]
    return "\n".join(text) + "\n"


REPORT = Report(DOCS / "embedding.json", "make bench-embedding", Run, {DOCS / "embedding.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
