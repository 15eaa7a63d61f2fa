"""Images named in a prompt by their paths, including those a terminal writes for dropped files."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from puna.cli import terminal
from puna.config import path_of
from puna.errors import ImageError

#: A path with an image's extension: quoted, or with its spaces escaped.
_PATH: Final = re.compile(
    r"""(?P<quote>["'])(?P<quoted>[^"'\n]{1,1000}\.(?:jpe?g|png|webp|gif|bmp))(?P=quote)"""
    r"""|(?<!\S)(?P<plain>(?:\\.|[^\s\\"']){1,1000}\.(?:jpe?g|png|webp|gif|bmp))(?![\w/])""",
    re.IGNORECASE,
)


#: The prompt for an image sent without text.
DEFAULT_PROMPT: Final = "What is in this picture?"


def take_images(text: str, model: str, shown: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return `text` without the paths of existing images, and those images as base64, in order.

    The images are listed on standard error. A path without a file stays in the text, with a warning; so does
    every path if `model` takes no images according to `shown`, its reply of `/api/show`. For such a model, a
    bare name without a file is just a word. Raises `ImageError` for a file that cannot be read.
    """
    images: list[str] = []
    sees = "vision" in (shown.get("capabilities") or ())
    missing: list[str] = []
    unseen: list[str] = []

    def taken(found: re.Match[str]) -> str:
        name = found["quoted"] or re.sub(r"\\(.)", r"\1", found["plain"])
        path = path_of(name.removeprefix("file://"))
        if not _is_file(path):
            if (sees or "/" in name) and "://" not in name.removeprefix("file://"):
                missing.append(name)
            return found[0]
        if not sees:
            unseen.append(name)
            return found[0]
        try:
            images.append(base64.b64encode(path.read_bytes()).decode())
        except OSError as error:
            raise ImageError(f"the image {path} cannot be read: {error}") from error
        terminal.note(f"Added image '{path}'")
        return ""

    rest = _PATH.sub(taken, text)
    if missing:
        terminal.warn(f"there is no file {_named(missing)}: the model gets the name, not an image")
    if unseen:
        terminal.warn(f"model '{model}' takes no images: it gets the name {_named(unseen)}, not the image")
    return (rest.strip() if images else text), images


def _named(names: Sequence[str]) -> str:
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return f"'{names[0]}'{more}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as for a name that is too long
        return False
