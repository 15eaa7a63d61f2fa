"""Puna and llama.cpp side by side: same file, same threads, taking turns in one process.

    make bench-peers                                  # installs llama-cpp-python once, runs this
    python bench/peers.py --model MODEL.gguf ...      # any model

Prints a table and writes it to docs/performance-table.md. What counts is the ratio of medians: the
machine may be busy, but it is equally busy for both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from llama_cpp_peer import LlamaCpp
from models import random_model

from puna import ops
from puna.engine.bench import Bench

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Row:
    model: str
    test: str
    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.theirs)


def compare(name: str, path: Path, arguments: argparse.Namespace) -> list[Row]:
    """All tests on one file."""
    streams, prompt, generate = arguments.parallel, arguments.prompt, arguments.generate
    context = max(prompt, 16 + generate) + 8
    ours = Bench(path, context=context, parallel=streams, threads=arguments.threads)
    theirs = LlamaCpp(path, context=context, parallel=streams, threads=arguments.threads)
    tests: list[tuple[str, Callable[[], float], Callable[[], float]]] = [
        (f"prompt {prompt}", lambda: ours.read(1, prompt), lambda: theirs.read(1, prompt)),
        (f"decode {generate}", lambda: ours.decode(1, generate), lambda: theirs.decode(1, generate)),
        (
            f"decode {generate}, {streams} streams",
            lambda: ours.decode(streams, generate),
            lambda: theirs.decode(streams, generate),
        ),
    ]
    rows = []
    for test, run_ours, run_theirs in tests:
        row = Row(name, test, [], [])
        for repetition in range(arguments.repetitions + 1):
            figures = run_ours(), run_theirs()
            if repetition:  # the first warms up
                row.ours.append(figures[0])
                row.theirs.append(figures[1])
        print(
            f"{name:>20}  {test:<24} puna {statistics.median(row.ours):8.1f}  "
            f"llama.cpp {statistics.median(row.theirs):8.1f} tokens/s  ratio {row.ratio:.2f}",
            flush=True,
        )
        rows.append(row)
    ours.close()
    theirs.close()
    return rows


def table(rows: list[Row], threads: int) -> str:
    """The results as Markdown."""
    lines = [
        f"Tokens per second, medians, {threads} threads, {_cpu_name()}.",
        "",
        "| model | test | Puna | llama.cpp | ratio |",
        "|---|---|---:|---:|---:|",
    ]
    lines += [
        f"| {row.model} | {row.test} | {statistics.median(row.ours):.1f} "
        f"| {statistics.median(row.theirs):.1f} | {row.ratio:.2f} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def main() -> None:
    parser = argparse.ArgumentParser(description="Puna and llama.cpp side by side")
    parser.add_argument(
        "--model", type=Path, action="append", help="a GGUF file; default: random 1B and 135M"
    )
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "performance-table.md")
    arguments = parser.parse_args()
    print(f"kernels: {ops.implementation()}", flush=True)
    if arguments.model:
        models = [(path.name, path) for path in arguments.model]
    else:
        shapes = [("1b", "q4_k_m"), ("1b", "q8_0"), ("135m", "q8_0")]
        folder = ROOT / "build" / "bench-models"
        models = [(f"{shape} {mix}", random_model(shape, mix, folder)) for shape, mix in shapes]
    rows = [row for name, path in models for row in compare(name, path, arguments)]
    text = table(rows, arguments.threads)
    print("\n" + text)
    arguments.output.parent.mkdir(exist_ok=True)
    arguments.output.write_text(text)


if __name__ == "__main__":
    main()
