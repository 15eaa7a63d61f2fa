"""A cache of published models converted to GGUF, so that each is converted only once."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from puna import __version__, config
from puna.convert.convert import Report, convert, convert_adapters, convert_tower
from puna.convert.whisper_cpp import convert_whisper_cpp
from puna.errors import ConversionError

#: Called with the part being converted, the bytes done and the total.
Progress = Callable[[str, int, int], None]

_ADAPTER = "lora-"


@dataclass(frozen=True)
class Converted:
    """The files of a converted folder."""

    model: Path
    projector: Path | None = None
    adapters: dict[str, Path] = field(default_factory=dict)  # by name, as requests select them


def converted(folder: Path, progress: Progress = lambda part, done, total: None) -> Converted:
    """Return the GGUF files for `folder`, converting it if it is new or has changed.

    They are kept in `~/.puna/converted` (`PUNA_HOME`), for one state of each folder. The names, sizes and
    times of a folder's files show whether it has changed. Raises ConversionError and GGUFError like
    `convert`, and ConversionError if the files cannot be kept.
    """
    folder = folder.resolve()
    if not any(folder.glob("*.safetensors")):
        raise ConversionError(_nothing_to_convert(folder))
    files = sorted(path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts)
    place = _place_of(folder, files, lambda draft: _convert(folder, draft, progress))
    return _files_in(place, folder.name)


def converted_whisper_cpp(file: Path, progress: Progress = lambda part, done, total: None) -> Path:
    """Return the GGUF file for a `file` of whisper.cpp, kept like those of `converted`. Raises likewise."""
    file = file.resolve()
    name = f"{file.stem}.gguf"

    def convert_into(draft: Path) -> None:
        convert_whisper_cpp(
            file, draft / name, name=file.name, report=lambda done, total: progress("model", done, total)
        )

    return _place_of(file, [file], convert_into) / name


def _place_of(source: Path, files: Sequence[Path], convert_into: Callable[[Path], None]) -> Path:
    """Return the folder with the files for the present state of a source, made first if it does not exist."""
    kept = config.home() / "converted" / f"{source.name}-{_digest(str(source))}"
    place = kept / _state_digest(source, files)
    if not place.is_dir():
        draft = kept / f"tmp-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            draft.mkdir(parents=True)
            convert_into(draft)
            _move_into_place(draft, place)
        except OSError as error:
            raise ConversionError(
                f"{source.name} cannot be converted into {kept}: {error.strerror or error}; "
                "PUNA_HOME chooses another place, 'puna convert' writes where you say"
            ) from error
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return place


def _convert(folder: Path, draft: Path, progress: Progress) -> None:
    def reporting(part: str) -> Report:
        return lambda done, total: progress(part, done, total)

    convert(folder, draft / f"{folder.name}.gguf", report=reporting("model"))
    convert_tower(folder, draft / f"mmproj-{folder.name}.gguf", report=reporting("vision tower"))
    convert_adapters(
        folder,
        lambda name: draft / f"{_ADAPTER}{name}.gguf",
        draft / f"{folder.name}.gguf",
        report=reporting("adapters"),
    )


def _move_into_place(draft: Path, place: Path) -> None:
    """Move the finished files to `place`, unless another process was faster, and remove earlier states."""
    try:
        draft.rename(place)
    except OSError:
        if not place.is_dir():
            raise
    for other in place.parent.iterdir():
        if other != place and not other.name.startswith("tmp-"):
            shutil.rmtree(other, ignore_errors=True)


def _files_in(place: Path, name: str) -> Converted:
    projector = place / f"mmproj-{name}.gguf"
    return Converted(
        place / f"{name}.gguf",
        projector if projector.is_file() else None,
        {path.stem.removeprefix(_ADAPTER): path for path in sorted(place.glob(f"{_ADAPTER}*.gguf"))},
    )


def _state_digest(source: Path, files: Sequence[Path]) -> str:
    """Return a digest of the names, sizes and times of a source's files, and of the converter's version."""
    stamps = [(path, path.stat()) for path in files]
    listed = [f"{path.relative_to(source)}\0{at.st_size}\0{at.st_mtime_ns}" for path, at in stamps]
    return _digest("\n".join([__version__, *listed]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _nothing_to_convert(folder: Path) -> str:
    files = sorted(path.name for path in folder.glob("*.gguf"))
    if files:
        return f"{folder} is a folder: name the file in it, {folder / files[0]}"
    return f"{folder} has no safetensors files, so it is not a published model's folder"
