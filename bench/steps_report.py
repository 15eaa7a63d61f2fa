"""Output of the times of decode steps: lines for the terminal, a table, JSON.

python bench/steps_report.py        # regenerates the table from docs/steps.json
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pages import DOCS, Report

#: Kernels that multiply matrices.
MATRICES = {"linear", "expert_linear", "experts", "linear_heads"}
#: Kernels whose work grows with the context, or which update a state.
MIXING = {"attention", "linear_attention", "selective_scan", "short_conv", "store_rows"}


@dataclass(frozen=True)
class Row:
    """A model's decode steps: seconds of a step, and of its kernels by name."""

    model: str
    step_s: float
    bytes: float  # of matrices, keys, values and states, that a step reads or writes
    read: float  # bytes per second of all threads, measured beside it
    kernels: dict[str, float]
    streams: int = 1
    multiplying_s: float = 0.0  # the least seconds of its multiplications, if known

    @property
    def name(self) -> str:
        return self.model if self.streams == 1 else f"{self.model}, {self.streams} streams"

    @property
    def least_s(self) -> float:
        """The time that memory takes for these bytes, or the processor to multiply if that is longer."""
        return max(self.bytes / self.read, self.multiplying_s)

    @property
    def matrices_s(self) -> float:
        return sum(seconds for name, seconds in self.kernels.items() if name in MATRICES)

    @property
    def mixing_s(self) -> float:
        return sum(seconds for name, seconds in self.kernels.items() if name in MIXING)

    @property
    def other_kernels_s(self) -> float:
        return sum(self.kernels.values()) - self.matrices_s - self.mixing_s

    @property
    def outside_s(self) -> float:
        """The time outside kernels."""
        return max(self.step_s - sum(self.kernels.values()), 0.0)


@dataclass(frozen=True)
class Run:
    """All rows, and where they were measured."""

    processor: str
    threads: int
    rows: Sequence[Row]


def line(row: Row) -> str:
    return (
        f"{row.name:33} step {row.step_s * 1e6:8.0f} us, bound {row.least_s / row.step_s:4.0%}; "
        f"matrices {row.matrices_s / row.step_s:4.0%}, attention, states {row.mixing_s / row.step_s:4.0%}, "
        f"other kernels {row.other_kernels_s / row.step_s:4.0%}, outside {row.outside_s / row.step_s:4.0%}"
    )


def table(run: Run) -> str:
    """Format the table."""
    text = [
        f"{run.processor}, {run.threads} threads.",
        "",
        "| model | step | its bound | matrices | attention, states | other kernels | outside kernels |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    text += [
        f"| {row.name} | {row.step_s * 1e3:.2f} ms | {row.least_s / row.step_s:.0%} | "
        f"{row.matrices_s / row.step_s:.0%} | {row.mixing_s / row.step_s:.0%} | "
        f"{row.other_kernels_s / row.step_s:.0%} | {row.outside_s / row.step_s:.0%} |"
        for row in run.rows
    ]
    return "\n".join(text) + "\n"


REPORT = Report(DOCS / "steps.json", "make bench-steps", Run, {DOCS / "performance.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
