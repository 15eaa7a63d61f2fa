"""Messages of a reader: it gets the bytes of one document, and answers with its text or an error."""

from __future__ import annotations

from typing import Final

import msgspec

#: Limits of one document: its file, pages and text, and what reading it takes. Memory counts beyond what the
#: process has before it.
MAX_BYTES: Final = 32 << 20
MAX_PAGES: Final = 600
MAX_CHARACTERS: Final = 4_000_000
SECONDS: Final = 30.0
MEMORY_BYTES: Final = 1 << 30

#: Exit status of a reader whose document took too much memory.
OUT_OF_MEMORY: Final = 12

#: Longer frames cannot come of `MAX_CHARACTERS`.
MAX_FRAME_BYTES: Final = 32 << 20


class ReaderReady(msgspec.Struct, tag=True, frozen=True):
    """First message of the process, once it has started."""


class DocumentText(msgspec.Struct, tag=True, frozen=True):
    """The text of the document, its pages apart."""

    text: str


class ReaderFailure(msgspec.Struct, tag=True, frozen=True):
    """The document cannot be read; `kind` is a class of `puna.errors`."""

    kind: str
    message: str


FromReader = ReaderReady | DocumentText | ReaderFailure
