"""Output of the measurement of speculative decoding: lines for the terminal, a table, JSON.

python bench/speculation_report.py        # regenerates the table from docs/speculation.json
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from pages import DOCS, Report


@dataclass(frozen=True)
class Result:
    """The seconds of decoding one workload without and with speculation, one value per repetition."""

    streams: int
    text: str
    tokens: int  # of all streams
    plain: list[float]
    speculative: list[float]
    drafted: int
    accepted: int
    source: str = "prompt lookup"  # of the drafts

    def speed(self, seconds: list[float]) -> float:
        """Return the tokens per second if decoding takes the median of `seconds`."""
        return self.tokens / statistics.median(seconds)

    @property
    def gain(self) -> float:
        """The ratio of the decoding times without and with speculation."""
        return statistics.median(self.plain) / statistics.median(self.speculative)


@dataclass(frozen=True)
class Run:
    """All workloads of one model."""

    model: str
    threads: int
    clock: str  # "time", or "processor time" of one thread
    processor: str
    results: list[Result]


def line(result: Result) -> str:
    return (
        f"{result.streams} streams  {result.text:6} {result.source:24} {result.gain:5.2f}x  "
        f"{result.speed(result.speculative):7.1f} tokens/s  "
        f"{result.accepted}/{result.drafted} accepted"
    )


def table(run: Run) -> str:
    """Format the results as Markdown."""
    text = [
        f"Model {run.model}, {run.threads} threads, {run.processor}; medians of "
        f"{len(run.results[0].plain)} alternating runs, {run.clock}.",
        "",
        "| drafts | text | streams | tokens/s without | with | times as fast | draft tokens accepted |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    text += [
        f"| {result.source} | {result.text} | {result.streams} | {result.speed(result.plain):.0f} | "
        f"{result.speed(result.speculative):.0f} | {result.gain:.2f} | "
        f"{result.accepted} of {result.drafted} |"
        for result in run.results
    ]
    return "\n".join(text) + "\n"


REPORT = Report(DOCS / "speculation.json", "make bench-speculation", Run, {DOCS / "speculation.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
