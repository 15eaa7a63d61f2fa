"""Images named in what a user types: paths, also as terminals write the names of files dropped on them."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Final

from puna.cli import terminal
from puna.config import path_of
from puna.errors import ImageError

#: A path that ends like an image's name: quoted, or with escaped spaces, or without any.
_PATH: Final = re.compile(
    r"""(?P<quote>["'])(?P<quoted>[^"'\n]{1,1000}\.(?:jpe?g|png|webp|gif|bmp))(?P=quote)"""
    r"""|(?<!\S)(?P<plain>(?:\\.|[^\s\\"']){1,1000}\.(?:jpe?g|png|webp|gif|bmp))(?![\w/])""",
    re.IGNORECASE,
)


#: What is asked about an image that is sent without a word.
LOOK: Final = "What is in this picture?"


def take_images(text: str) -> tuple[str, list[str]]:
    """`text` without the paths of images that exist, and those images as base64, in order.

    Those are named on standard error. A path that names no file stays in the text: it may be about one.
    Raises `ImageError` for a file that is there and cannot be read.
    """
    images: list[str] = []

    def taken(found: re.Match[str]) -> str:
        name = found["quoted"] or re.sub(r"\\(.)", r"\1", found["plain"])
        path = path_of(name.removeprefix("file://"))
        if not _is_file(path):
            return found[0]
        try:
            images.append(base64.b64encode(path.read_bytes()).decode())
        except OSError as error:
            raise ImageError(f"the image {path} cannot be read: {error}") from error
        terminal.note(f"Added image '{path}'")
        return ""

    rest = _PATH.sub(taken, text)
    return (rest.strip() if images else text), images


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long a name, say
        return False
