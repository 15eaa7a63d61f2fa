"""Output of the comparison with float32: lines for the terminal, a table, JSON.

python bench/accuracy_report.py        # regenerates the table from docs/accuracy.json
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pages import DOCS, Report

SHOWN_MODEL = "random"


@dataclass(frozen=True)
class Result:
    """The distances of one type on one model. Divergences are in nats, distances in log-probability."""

    model: str
    type: str
    positions: int
    puna: float  # mean divergence from float32
    llama_cpp: float
    log_ratio: float  # of the two divergences, mean over sequences
    log_error: float  # its standard error
    to_llama_cpp: float  # Puna's mean distance from the nearest of llama.cpp's results
    llama_cpp_to_itself: float  # the largest distance between these results

    @property
    def ratio(self) -> float:
        return math.exp(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the ratio."""
        return math.exp(self.log_ratio - 2 * self.log_error), math.exp(self.log_ratio + 2 * self.log_error)


def line(result: Result) -> str:
    low, high = result.interval
    return (
        f"{result.model:6}  {result.type:7} KL to float32: Puna {result.puna:.2e}, llama.cpp "
        f"{result.llama_cpp:.2e}; ratio {result.ratio:.2f} (95 %: {low:.2f} to {high:.2f}); difference: Puna "
        f"to llama.cpp {result.to_llama_cpp:.2e}, llama.cpp to itself {result.llama_cpp_to_itself:.2e}"
    )


def table(results: Sequence[Result]) -> str:
    """Format the table, with one model."""
    text = [
        "| type | KL divergence from float32, Puna | llama.cpp | ratio (95 % interval) |",
        "|---|---:|---:|---:|",
    ]
    for result in results:
        if result.model == SHOWN_MODEL:
            low, high = result.interval
            text.append(
                f"| {result.type} | {result.puna:.2e} | {result.llama_cpp:.2e} "
                f"| {result.ratio:.2f} ({low:.2f} to {high:.2f}) |"
            )
    return "\n".join(text) + "\n"


REPORT = Report(DOCS / "accuracy.json", "make bench-accuracy", list[Result], {DOCS / "performance.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
