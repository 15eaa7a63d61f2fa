"""Commands on model files: tokenize, bench, quantize, convert and debug, most without a server."""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from glob import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import typer

from puna.cli import manage, progress, terminal
from puna.cli.manage import model_path, projector_path
from puna.cli.progress import StatusLines
from puna.convert import convert as convert_folder
from puna.convert import convert_adapters, convert_tower, has_tower_alone
from puna.errors import ConversionError, GGUFError, RequestError
from puna.gguf import open_gguf
from puna.kvcache.contents import Contents, picture
from puna.machine import available_memory
from puna.quantize import file_type_of, quantize_file, read_importance

if TYPE_CHECKING:
    from puna.model.memory import MemoryTable


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
    """Measure speeds and print a table, or with `as_json` one JSON object. Raises RequestError."""
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
    """Parse a list like `1,8`, dropping duplicates. Raises RequestError unless all numbers are at least 1."""
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
    """Return the median of the repetitions, and half the difference between fastest and slowest."""
    return f"{statistics.median(rates):.2f}", f"± {(max(rates) - min(rates)) / 2:.2f}"


def print_memory(model: str | None, num_ctx: int | None, parallel: int | None, *, as_json: bool) -> None:
    """Print the memory that `model` would need in a server with this environment, as text or JSON."""
    if model is None:
        raise RequestError("which model? Usage: puna debug memory MODEL")
    from puna.gguf import open_gguf
    from puna.kvcache.types import KVTypes
    from puna.model.load import LoadSettings, planned_forecast
    from puna.options import Options, drafts_itself, engine_from_env
    from puna.server.settings import DEFAULT_PARALLEL, Settings

    settings = Settings.from_env()
    path = model_path(model)
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(open_gguf(path))
        projector = projector_path(model, path)
        beside = opened.enter_context(open_gguf(projector)) if projector else None
        wanted = LoadSettings(
            context=num_ctx or settings.context_length,
            parallel=parallel or settings.parallel or DEFAULT_PARALLEL,
            batch_size=Options().num_batch,
            cache_types=KVTypes.parse(settings.kv_cache_type),
            prediction_heads=drafts_itself(settings.speculate),
            engine=engine_from_env(),
        )
        forecast = planned_forecast(file, wanted, beside)
    table = forecast.table(context=wanted.context, parallel=wanted.parallel, batch=wanted.batch_size)
    if as_json:
        totals = {device: table.on(device) for device in table.devices}
        print(json.dumps({**asdict(table), "totals": totals, "available": available_memory()}))
    else:
        print(describe_memory(table, available_memory()))


def describe_memory(table: MemoryTable, available: int) -> str:
    """Format the table as text, followed by each device's total and the machine's available memory."""
    rows = [
        (part.name, part.device, progress.size(part.weights), progress.size(part.cache))
        for part in table.parts
    ]
    ends = [
        f"Activations for {table.batch} tokens: {progress.size(table.activations)}",
        *(f"Activations on {device}: {progress.size(count)}" for device, count in table.beside),
        f"Bookkeeping: {progress.size(table.bookkeeping)}",
        f"Tokenizer: {progress.size(table.tokenizer)}",
        f"Process: {progress.size(table.process)}",
        *(f"Total on {device}: {progress.size(table.on(device))}" for device in table.devices),
        *([f"GPUs that need as much each: {table.ranks}"] if table.ranks > 1 else []),
        f"Available: {progress.size(available)}",
    ]
    head = f"Context of {table.context} tokens for each of {table.parallel} parallel requests"
    return "\n".join([head, "", manage.table(("PART", "DEVICE", "WEIGHTS", "CACHE"), rows), "", *ends])


def tokenize(
    model: str,
    words: Sequence[str] | None,
    *,
    jsonl: bool,
    add_special: bool,
    parse_special: bool,
    as_json: bool = False,
) -> None:
    """Print the id and text of each token in `words`, or in standard input if there are none.

    With `jsonl`, read JSON lines from standard input and print JSON lines of ids. Tokens are printed in
    quotes, except control tokens; `as_json` prints a JSON array of objects instead.
    """
    if jsonl and words:
        raise RequestError("--jsonl reads texts from standard input; it cannot be combined with TEXT")
    from puna.tokenizer.command import open_tokenizer, token_lines, token_rows

    tokenizer = open_tokenizer(model_path(model))
    if jsonl:
        lines = sys.stdin.buffer
        for answer in token_lines(tokenizer, lines, add_special=add_special, parse_special=parse_special):
            print(answer, flush=True)
        return
    text = " ".join(words) if words else terminal.read_stdin()
    rows = token_rows(tokenizer, text, add_special=add_special, parse_special=parse_special)
    if as_json:
        print(json.dumps([{"id": id, "text": piece} for id, piece in rows]))
        return
    for id, piece in rows:
        print(f"{id:>7}  {piece}" if tokenizer.is_control(id) else f'{id:>7}  "{piece}"')


def quantize(
    source: Path, target: Path, kind: str, imatrix: Path | None, *, again: bool, force: bool = False
) -> None:
    """Quantize the model file `source` to `target` as `kind`, showing progress; see `convert` for `force`."""
    file_type = file_type_of(kind)
    _check_target(target, source)
    _check_existing([target], force)
    importance = read_importance(imatrix) if imatrix else None
    with open_gguf(source) as file, StatusLines() as lines:
        before = sum(path.stat().st_size for path in file.paths)
        report = _reporting(lines, f"quantizing {source.name} to {file_type.label}")
        quantize_file(file, target, file_type, importance, again=again, report=report)
    after = target.stat().st_size
    terminal.note(f"{target}: {after / 1e6:,.1f} MB of {before / 1e6:,.1f} MB ({after / before:.0%})")


def convert(
    source: Path,
    target: Path,
    kind: str | None,
    ignore: Collection[str] = (),
    *,
    target_model: Path | None = None,
    force: bool = False,
) -> None:
    """Convert the model in the folder `source` to `target`, showing progress.

    Its vision tower and its adapters become files beside `target`; a tower without a text
    model becomes `target`. Settings of config.json listed in `ignore` may have values that a file cannot
    express. A draft model may need the folder `target_model` of the model it drafts for. Existing files are
    overwritten with `force`, or if the user agrees on a terminal.
    """
    _check_target(target, source)
    folder = target.parent
    _check_existing(
        [target, folder / f"mmproj-{target.name}", *sorted(folder.glob(f"lora-*-{escape(target.name)}"))],
        force,
    )
    if not source.is_dir():
        raise RequestError(f"{source} is not a folder")
    if target_model is not None and not target_model.is_dir():
        raise RequestError(f"{target_model} is not a folder")
    with StatusLines() as lines:
        file_type = file_type_of(kind) if kind else None
        report = _reporting(lines, f"converting {source.name}")
        if has_tower_alone(source):
            if not convert_tower(source, target, file_type, report=report):
                raise ConversionError(f"{source}: config.json lacks settings of a tower: it is elsewhere")
            terminal.note(f"{target}: {target.stat().st_size / 1e6:,.1f} MB")
            return
        convert_folder(source, target, file_type, ignore=ignore, target_model=target_model, report=report)
        tower = target.with_name(f"mmproj-{target.name}")
        has_tower = convert_tower(
            source, tower, file_type, report=_reporting(lines, f"converting {source.name}'s vision tower")
        )
        adapters = convert_adapters(
            source,
            lambda name: target.with_name(f"lora-{name}-{target.name}"),
            target,
            report=_reporting(lines, f"converting {source.name}'s adapters"),
        )
    for path in (target, *((tower,) if has_tower else ()), *adapters.values()):
        terminal.note(f"{path}: {path.stat().st_size / 1e6:,.1f} MB")


def _reporting(lines: StatusLines, text: str) -> Callable[[int, int], None]:
    return lambda done, total: lines.show(text, done, total)


def _check_existing(targets: Sequence[Path], force: bool) -> None:
    """Raise RequestError if one of `targets` exists and must not be overwritten."""
    existing = [str(path) for path in targets if path.exists()]
    if force or not existing:
        return
    names = ", ".join(existing[:3])
    if not (sys.stdin.isatty() and terminal.stderr_is_terminal()):
        raise RequestError(f"{names} exists; use --force to overwrite it")
    if not typer.confirm(f"{names} exists. Overwrite it?", err=True):
        raise RequestError(f"{names} was not overwritten")


def _check_target(target: Path, source: Path) -> None:
    """Refuse to overwrite the source, or to write into a folder that does not exist."""
    if target.exists() and source.exists() and target.samefile(source):
        raise RequestError(f"{target} is the file to read; choose another name for the output")
    if not target.resolve().parent.is_dir():
        raise GGUFError(f"there is no folder {target.resolve().parent} to write {target.name} into")


_INDENT = "    "


def print_caches(model: str | None, *, as_json: bool) -> None:
    """Print the caches of `model`, or of all loaded models; with `as_json`, the server's reply.

    Raises RequestError when no model is loaded.
    """
    import msgspec

    from puna.cli.server_process import connect

    with connect(start=False) as client:
        path = "/api/debug/cache" + (f"?model={quote(model)}" if model else "")
        models = client.get(path)["models"]
    if not models:
        raise RequestError("no model is loaded; load one first with 'puna run MODEL'")
    if as_json:
        print(json.dumps(models))
        return
    for shown in models:
        print(shown["name"])
        for contents in msgspec.convert(shown["caches"], list[Contents]):
            print(f"\n{describe_contents(contents)}\n")
            lines = picture(contents, contents.used, terminal.width() - len(_INDENT))
            print("".join(f"{_INDENT}{line}\n" for line in lines), end="")


def describe_contents(contents: Contents) -> str:
    """Return, for example, `causal, layers 0-3, 5: 12 of 4096 cells in use, 1.5 MB of memory`."""
    unit = "states" if contents.kind == "recurrent" else "cells"
    return (
        f"{contents.kind}, {_layers(contents.layers)}: {contents.held} of {contents.capacity} {unit} in use, "
        f"{progress.size(contents.provided_bytes)} of memory"
    )


def _layers(numbers: list[int]) -> str:
    # In a run of consecutive numbers, number minus index is constant.
    runs = groupby(enumerate(sorted(numbers)), key=lambda entry: entry[1] - entry[0])
    ranges = [[number for _, number in run] for _, run in runs]
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ranges]
    return ("layer " if len(numbers) == 1 else "layers ") + ", ".join(texts)
