"""Output of the kernels' bounds: lines for the terminal, a table, JSON.

python bench/kernel_bounds_report.py        # regenerates the table from docs/kernels.json
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pages import DOCS, Report


@dataclass(frozen=True)
class Row:
    """One type. Shares are of the machine's 8-bit multiply-adds, or its read bandwidth."""

    type: str
    bound: float  # the share of multiplications that are the product's own
    prompt: float  # of many tokens, with one thread and weights in the cache
    decode: float  # of one token, with all threads and weights from memory
    streams: float  # of 8 tokens, with one thread and weights in the cache
    streams_of_bound: float  # from memory, of whatever takes longer: reading, or multiplying as in the cache


@dataclass(frozen=True)
class Run:
    """All rows, and where they were measured."""

    processor: str
    threads: int
    byte_peak: float  # 8-bit multiply-adds per second of one thread
    read: float  # bytes per second of all threads: the median of those measured beside the rows
    copy: float  # the same, read and written past the caches
    rows: Sequence[Row]


def line(row: Row) -> str:
    return (
        f"{row.type:7} bound {row.bound:4.0%}, prompt {row.prompt:4.0%}; decode {row.decode:4.0%} of reads; "
        f"8 tokens {row.streams:4.0%}, from memory {row.streams_of_bound:4.0%} of their bound"
    )


def table(run: Run) -> str:
    """Format the table."""
    text = [
        f"{run.processor}: {run.byte_peak / 1e9:.0f} G 8-bit multiply-adds/s in a thread; {run.threads} "
        f"threads read {run.read / 1e9:.1f} GB/s, and copy at {run.copy / 1e9:.1f} GB/s, reads plus writes.",
        "",
        "| type | bound of a prompt's products | the kernel reaches | one token: share of bandwidth "
        "| 8 tokens, in the cache | from memory: share of the longer |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    text += [
        f"| {row.type} | {row.bound:.0%} | {row.prompt:.0%} | {row.decode:.0%} | {row.streams:.0%} "
        f"| {row.streams_of_bound:.0%} |"
        for row in run.rows
    ]
    return "\n".join(text) + "\n"


REPORT = Report(DOCS / "kernels.json", "make bench-kernels", Run, {DOCS / "performance.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
