"""Images and recordings named in a prompt by their paths, as a terminal writes those of dropped files."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from puna.cli import terminal
from puna.config import path_of
from puna.errors import AudioError, ImageError, RequestError


@dataclass(frozen=True)
class _Kind:
    article: str
    word: str
    capability: str  # of models that take such files
    prompt: str  # for a file sent without text
    error: type[RequestError]


_IMAGE: Final = _Kind("an", "image", "vision", "What is in this picture?", ImageError)
_RECORDING: Final = _Kind("a", "recording", "audio", "What is said in this recording?", AudioError)

#: The prompt for an image sent without text.
DEFAULT_PROMPT: Final = _IMAGE.prompt

_IMAGES: Final = r"jpe?g|png|webp|gif|bmp"
_RECORDINGS: Final = r"wav|mp3|flac|ogg|oga|opus|m4a|aac"
#: A path with the extension of such a file: quoted, or with its spaces escaped.
_PATH: Final = re.compile(
    rf"""(?P<quote>["'])(?P<quoted>[^"'\n]{{1,1000}}\.(?:{_IMAGES}|{_RECORDINGS}))(?P=quote)"""
    rf"""|(?<!\S)(?P<plain>(?:\\.|[^\s\\"']){{1,1000}}\.(?:{_IMAGES}|{_RECORDINGS}))(?![\w/])""",
    re.IGNORECASE,
)
_OF_RECORDING: Final = re.compile(rf"\.(?:{_RECORDINGS})$", re.IGNORECASE)


def take_files(text: str, model: str, shown: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return `text` without the paths of existing images and recordings, and those files as base64, in order.

    The files are listed on standard error. A path without a file stays in the text, with a warning; so does
    every path of a kind that `model` does not take according to `shown`, its reply of `/api/show`. For such a
    model, a bare name without a file is just a word. A text that has nothing but paths becomes a question
    about the first. Raises `ImageError` and `AudioError` for a file that cannot be read.
    """
    files: list[str] = []
    kinds: list[_Kind] = []
    missing: dict[_Kind, list[str]] = {}
    unread: dict[_Kind, list[str]] = {}

    def taken(found: re.Match[str]) -> str:
        name = found["quoted"] or re.sub(r"\\(.)", r"\1", found["plain"])
        kind = _RECORDING if _OF_RECORDING.search(name) else _IMAGE
        reads = kind.capability in (shown.get("capabilities") or ())
        path = path_of(name.removeprefix("file://"))
        if not _is_file(path):
            if (reads or "/" in name) and "://" not in name.removeprefix("file://"):
                missing.setdefault(kind, []).append(name)
            return found[0]
        if not reads:
            unread.setdefault(kind, []).append(name)
            return found[0]
        try:
            files.append(base64.b64encode(path.read_bytes()).decode())
        except OSError as error:
            raise kind.error(f"the {kind.word} {path} cannot be read: {error}") from error
        kinds.append(kind)
        terminal.note(f"Added {kind.word} '{path}'")
        return ""

    rest = _PATH.sub(taken, text)
    for kind, names in missing.items():
        one = f"{kind.article} {kind.word}"
        terminal.warn(f"there is no file {_named(names)}: the model gets the name, not {one}")
    for kind, names in unread.items():
        terminal.warn(
            f"model '{model}' takes no {kind.word}s: it gets the name {_named(names)}, not the {kind.word}"
        )
    return ((rest.strip() or kinds[0].prompt) if files else text), files


def _named(names: Sequence[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"'{names[0]}'{more}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as for a name that is too long
        return False
