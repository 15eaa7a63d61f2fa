"""`puna quantize` and `puna convert`: model files made of others."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from glob import escape
from pathlib import Path

import typer

from puna.cli import terminal
from puna.cli.progress import StatusLines
from puna.convert import convert as convert_folder
from puna.convert import convert_adapters, convert_tower
from puna.errors import GGUFError, RequestError
from puna.gguf import open_gguf
from puna.quantize import file_type_of, quantize_file, read_importance


def quantize(
    source: Path, target: Path, kind: str, imatrix: Path | None, *, again: bool, force: bool = False
) -> None:
    """Write the model file `source` to `target` as a `kind`, showing progress; see `convert` for `force`."""
    file_type = file_type_of(kind)
    _check_target(target, source)
    _check_existing([target], force)
    importance = read_importance(imatrix) if imatrix else None
    with open_gguf(source) as file, StatusLines() as lines:
        before = sum(path.stat().st_size for path in file.paths)
        report = _reporting(lines, f"quantizing {source.name} to {file_type.label}")
        quantize_file(file, target, file_type, importance, again=again, report=report)
    after = target.stat().st_size
    terminal.note(f"{target}: {after / 1e6:,.1f} MB, of {before / 1e6:,.1f} MB ({after / before:.0%})")


def convert(
    source: Path, target: Path, kind: str | None, ignore: Collection[str] = (), *, force: bool = False
) -> None:
    """Write the model in the folder `source` to `target`, showing progress.

    Its vision tower and the adapters it is published with become files beside that. Settings of config.json
    that `ignore` names may be what a file cannot carry. Files that exist are written over with `force`, or if
    the user agrees on a terminal.
    """
    _check_target(target, source)
    folder = target.parent
    _check_existing(
        [target, folder / f"mmproj-{target.name}", *sorted(folder.glob(f"lora-*-{escape(target.name)}"))],
        force,
    )
    if not source.is_dir():
        raise RequestError(f"{source} is not a folder")
    with StatusLines() as lines:
        file_type = file_type_of(kind) if kind else None
        report = _reporting(lines, f"converting {source.name}")
        convert_folder(source, target, file_type, ignore=ignore, report=report)
        tower = target.with_name(f"mmproj-{target.name}")
        sees = convert_tower(
            source, tower, file_type, report=_reporting(lines, f"converting {source.name}'s vision tower")
        )
        adapters = convert_adapters(
            source,
            lambda name: target.with_name(f"lora-{name}-{target.name}"),
            report=_reporting(lines, f"converting {source.name}'s adapters"),
        )
    for path in (target, *((tower,) if sees else ()), *adapters.values()):
        terminal.note(f"{path}: {path.stat().st_size / 1e6:,.1f} MB")


def _reporting(lines: StatusLines, text: str) -> Callable[[int, int], None]:
    return lambda done, total: lines.show(text, done, total)


def _check_existing(targets: Sequence[Path], force: bool) -> None:
    """Raise RequestError if one of `targets` exists and is not to be written over."""
    existing = [str(path) for path in targets if path.exists()]
    if force or not existing:
        return
    names = ", ".join(existing[:3])
    if not (sys.stdin.isatty() and terminal.stderr_is_terminal()):
        raise RequestError(f"{names} exists; --force writes over it")
    if not typer.confirm(f"{names} exists. Write over it?", err=True):
        raise RequestError(f"{names}: left as it is")


def _check_target(target: Path, source: Path) -> None:
    """Refuse to write over what is read, or where there is no folder."""
    if target.exists() and source.exists() and target.samefile(source):
        raise RequestError(f"{target} is what is read; choose another name for the file to write")
    if not target.resolve().parent.is_dir():
        raise GGUFError(f"there is no folder {target.resolve().parent} to write {target.name} into")
