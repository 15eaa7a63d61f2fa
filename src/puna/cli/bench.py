"""`puna bench`: prompt and decode speed, measured in this process."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from puna.cli import terminal
from puna.cli.local_models import model_path
from puna.errors import RequestError


def bench(
    model: str,
    prompt: int,
    generate: int,
    parallel: tuple[int, ...],
    threads: int,
    repetitions: int,
    *,
    as_json: bool,
) -> None:
    """Measure, and print a table or (with `as_json`) one JSON object. Raises RequestError."""
    path = model_path(model)
    if not (prompt or generate):
        raise RequestError("nothing to measure: --prompt and --generate are both 0")
    tests = len(parallel) * (bool(prompt) + bool(generate))
    results: list[dict[str, Any]] = []
    with terminal.StatusLine() as line:
        line.show(f"loading {model}")
        from puna.engine.bench import run_bench
        from puna.ops import default_backend

        measured = run_bench(
            path,
            prompt=prompt,
            generate=generate,
            parallel=parallel,
            threads=threads,
            repetitions=repetitions,
        )
        for number in range(1, tests + 1):
            line.show(f"measuring {model}: {number} of {tests}")
            results.append(next(measured))
        used = default_backend().threads()
    if as_json:
        print(json.dumps({"model": model, "threads": used, "results": results}))
    else:
        _print_table(model, used, results)


def parse_counts(text: str) -> tuple[int, ...]:
    """The numbers in a text like `1,8`, without duplicates. Raises RequestError unless all are at least 1."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) >= 1 for part in parts):
        raise RequestError(f"--parallel must be a list of positive integers such as 1,8, not {text!r}")
    return tuple(dict.fromkeys(map(int, parts)))


def _print_table(model: str, threads: int, results: Sequence[Mapping[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    threads_text = "1 thread" if threads == 1 else f"{threads} threads"
    table = Table(box=box.SIMPLE_HEAD, title=f"{model}, {threads_text}", title_justify="left")
    table.add_column("test")
    for name in ("streams", "tokens/s", "spread"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(result["test"], str(result["parallel"]), *speed_texts(result["tokens_per_second"]))
    Console().print(table)


def speed_texts(rates: Sequence[float]) -> tuple[str, str]:
    """The median of the repetitions, and half the difference between the fastest and the slowest."""
    return f"{statistics.median(rates):.2f}", f"± {(max(rates) - min(rates)) / 2:.2f}"
