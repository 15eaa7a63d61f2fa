"""The decoder process: decodes one audio file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import msgspec

from puna.audio.decoding import decode
from puna.audio.limits import AudioLimits
from puna.audio.recording import Recording
from puna.reading import serve


def main() -> None:
    """Decode the file that the owner sends."""
    sys.stderr = os.fdopen(os.dup(2), "w")  # for errors of ours
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries' remarks about the file are for nobody
    serve(_decoded)


def _decoded(data: bytes, options: bytes) -> Iterator[bytes]:
    """Yield the samples as `Recording.data`."""
    for piece in decode(data, msgspec.msgpack.decode(options, type=AudioLimits)):
        yield bytes(Recording.of(piece).data)
