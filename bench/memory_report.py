"""Output of `make docs-memory`: how much memory models need, by context and number of requests.

python bench/memory_report.py        # regenerates the table from docs/memory.json
"""

from __future__ import annotations

from dataclasses import dataclass

from pages import DOCS, Report

#: Tokens of context, and requests at a time.
COLUMNS = ((4096, 1), (32768, 1), (131072, 1))


@dataclass
class Need:
    """Memory of a model with one type of weights, in bytes."""

    model: str
    type: str
    file: int
    memory: list[int]  # as COLUMNS


@dataclass
class Run:
    needs: list[Need]


def table(run: Run) -> str:
    titles = [
        f"{context // 1024}k tokens" + (f" for each of {parallel} requests" if parallel > 1 else "")
        for context, parallel in COLUMNS
    ]
    lines = [
        f"| model | type | file | {' | '.join(titles)} |",
        "|---|---|---:|" + "---:|" * len(COLUMNS),
    ]
    lines += [
        f"| {need.model} | {need.type} | {_gigabytes(need.file)} | "
        + " | ".join(_gigabytes(size) for size in need.memory)
        + " |"
        for need in sorted(run.needs, key=lambda need: need.memory[0])
    ]
    return "\n".join(lines) + "\n"


def _gigabytes(size: int) -> str:
    return f"{size / 2**30:.1f} GB"


REPORT = Report(DOCS / "memory.json", "make docs-memory", Run, {DOCS / "which-model.md": table})

if __name__ == "__main__":
    REPORT.rewrite()
