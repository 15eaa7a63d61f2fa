"""`puna transcribe`: audio files to text or subtitles."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from puna.audio.subtitles import srt, vtt
from puna.cli import terminal
from puna.cli.client import Client
from puna.cli.create import converted_folder, gguf_of, model_from_file, model_of_folder
from puna.cli.manage import existing_file, is_model_file
from puna.cli.server_process import connect
from puna.cli.transfers import pull_missing
from puna.config import path_of
from puna.errors import RequestError, ServerError

_TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
_TRANSLATIONS: Final = "/v1/audio/translations"


class OutputFormat(StrEnum):
    """A format of transcriptions, by the ending of its files."""

    TEXT = "txt"
    SRT = "srt"
    VTT = "vtt"
    JSON = "json"


@dataclass(frozen=True)
class Line:
    """A segment, with its times in seconds."""

    start_s: float
    end_s: float
    text: str


@dataclass
class FileTranscript:
    """A transcription as it comes: the events of its segments, and its end."""

    segments: list[dict[str, Any]] = field(default_factory=list)
    end: dict[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[Line]:
        return [Line(each["start"], each["end"], each["text"].strip()) for each in self.segments]

    def written(self, format: OutputFormat) -> str:
        """Return the content of a file in this format."""
        match format:
            case OutputFormat.TEXT:
                return "".join(f"{line.text}\n" for line in self.lines)
            case OutputFormat.SRT:
                return srt(self.lines)
            case OutputFormat.VTT:
                return vtt(self.lines)
            case OutputFormat.JSON:
                segments = [_without_type(segment) for segment in self.segments]
                whole = {**_without_type(self.end), "segments": segments}
                return json.dumps(whole, ensure_ascii=False) + "\n"


def _without_type(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "type"}


@dataclass(frozen=True)
class TranscribeSettings:
    """The options of `puna transcribe`."""

    model: str | None
    language: str
    translate: bool
    prompt: str
    format: OutputFormat
    words: bool  # whether their times are wanted, in JSON
    output: Path | None  # folder
    force: bool

    def target(self, file: Path) -> Path | None:
        """Return where the transcription of `file` is written; None: to standard output."""
        return None if self.output is None else self.output / f"{file.stem}.{self.format}"


def transcribe(files: Sequence[str], settings: TranscribeSettings) -> None:
    """Transcribe `files` one after another, starting a server if none is running.

    Raises RequestError before anything is sent if a file is missing or would be overwritten.
    """
    paths = [existing_file(name) for name in files]
    _check_targets(paths, settings)
    with connect() as client:
        model = _chosen_model(client, settings.model)
        if settings.output is not None:
            settings.output.mkdir(parents=True, exist_ok=True)
        for path in paths:
            target = settings.target(path)
            streams = target is None and settings.format is OutputFormat.TEXT
            found = _transcribed(client, model, path, settings, _print_line if streams else None)
            if target is not None:
                target.write_text(found.written(settings.format), encoding="utf-8")
            elif not streams:
                sys.stdout.write(found.written(settings.format))
                sys.stdout.flush()


def _check_targets(paths: Sequence[Path], settings: TranscribeSettings) -> None:
    if settings.output is None:
        if len(paths) > 1 and settings.format in (OutputFormat.SRT, OutputFormat.VTT):
            raise RequestError("subtitles of several files need a folder: --output DIR")
        return
    targets: dict[Path, Path] = {}
    for path in paths:
        target = settings.output / f"{path.stem}.{settings.format}"
        if target in targets:
            raise RequestError(f"{targets[target]} and {path} would both be written to {target}")
        if target.exists() and not settings.force:
            raise RequestError(f"{target} exists; overwrite it with --force")
        targets[target] = path


def _chosen_model(client: Client, given: str | None) -> str:
    """Return the name of the model to use: the one last changed that transcribes, unless one is `given`."""
    if given is None:
        for model in client.get("/api/tags").get("models") or ():
            if "transcription" in (model.get("capabilities") or ()):
                return str(model["name"])
        raise RequestError(
            "there is no model that transcribes; name one with --model, such as the folder of a Whisper model"
        )
    if not is_model_file(given):
        pull_missing(client, given)
        return given
    path = path_of(given)
    if path.is_dir():
        return model_of_folder(client, converted_folder(path))
    return model_from_file(client, str(gguf_of(existing_file(given))))


def _transcribed(
    client: Client,
    model: str,
    path: Path,
    settings: TranscribeSettings,
    show: Callable[[str], None] | None,
) -> FileTranscript:
    """Return the transcription of one file, with progress; `show` gets the text of each segment."""
    fields = {"model": model, "response_format": "verbose_json", "stream": "true", "return_progress": "true"}
    fields |= {"prompt": settings.prompt} if settings.prompt else {}
    fields |= {"language": settings.language} if settings.language else {}
    fields |= {"timestamp_granularities[]": "word"} if settings.words else {}
    found, began_s = FileTranscript(), 0.0
    url = _TRANSLATIONS if settings.translate else _TRANSCRIPTIONS
    with terminal.StatusLine() as line:
        line.show(f"{path.name}: waiting for {model}")
        for event in client.upload(url, fields, path):
            match event.get("type"):
                case "transcript.progress":
                    began_s = began_s or time.monotonic()
                    if show is None:
                        line.show(f"{path.name}: {_progress(event, began_s)}")
                case "transcript.text.segment":
                    found.segments.append(event)
                    if show is not None:
                        line.show("")
                        show(event["text"].strip())
                case "transcript.text.done":
                    found.end = event
    if not found.end:
        raise ServerError(f"{path}: the server ended the transcription before its end")
    for warning in found.end.pop("warnings", ()):
        terminal.warn(warning)
    seconds, taken_s = found.end["duration"], time.monotonic() - began_s
    speed = _speed(seconds, taken_s)
    terminal.note(f"{path.name}: {seconds:.1f} s of {found.end['language']} in {taken_s:.1f} s{speed}")
    return found


def _progress(event: Mapping[str, Any], began_s: float) -> str:
    done, total = event["done"], event["total"]
    return f"{done:.0f} of {total:.0f} s{_speed(done, time.monotonic() - began_s)}"


def _speed(seconds: float, taken_s: float) -> str:
    return f", {seconds / taken_s:.1f} times real time" if seconds and taken_s > 0 else ""


def _print_line(text: str) -> None:
    print(terminal.printable(text), flush=True)
