"""The reader process: reads the text of one document, and dies of one that exceeds its limits."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from typing import Final

from pypdf import PdfReader

from puna.confined import bounds, encoded, frame, settle
from puna.errors import DocumentError, PunaError
from puna.server.jobs.pdf.protocol import (
    MAX_CHARACTERS,
    MAX_PAGES,
    MEMORY_BYTES,
    OUT_OF_MEMORY,
    SECONDS,
    DocumentText,
    FromReader,
    ReaderFailure,
    ReaderReady,
)
from puna.system.memory import limited_bytes

_CONNECTION: Final = 0  # the file descriptor
#: Errors of pypdf quote the file; longer ones are cut.
_REASON_CHARS: Final = 500


def main() -> None:
    """Read the document that the owner sends."""
    settle()
    logging.disable()  # remarks about the file are for nobody
    with contextlib.suppress(ConnectionError):  # the owner is gone
        _send(ReaderReady())
        data = frame(lambda size: os.read(_CONNECTION, size))
        if data is not None:
            try:
                with bounds(SECONDS, limited_bytes() + MEMORY_BYTES):
                    found = answer(data)
            except MemoryError:
                os._exit(OUT_OF_MEMORY)
            _send(found)
    os._exit(0)


def answer(data: bytes) -> DocumentText | ReaderFailure:
    """Return the text of a PDF, or why there is none."""
    try:
        return DocumentText(text_of(data))
    except PunaError as error:
        return ReaderFailure(error.kind, str(error))
    except MemoryError:
        raise
    except Exception as error:  # pypdf raises anything for a damaged file
        reason = f"{type(error).__name__}: {error}"[:_REASON_CHARS]
        return ReaderFailure(
            DocumentError.__name__, f"is damaged, or of a kind that pypdf cannot read: {reason}"
        )


def text_of(data: bytes) -> str:
    """Return the text of a PDF, an empty line between pages. Raises DocumentError."""
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted:
        raise DocumentError("is encrypted: send it without a password")
    if (count := len(reader.pages)) > MAX_PAGES:
        raise DocumentError(f"has {count:,} pages, more than {MAX_PAGES}: send it in parts")
    pages: list[str] = []
    size = 0
    for page in reader.pages:
        pages.append(page.extract_text().strip())
        size += len(pages[-1])
        if size > MAX_CHARACTERS:
            raise DocumentError(f"has more than {MAX_CHARACTERS:,} characters: send it in parts")
    text = "\n\n".join(page for page in pages if page)
    if not text:
        raise DocumentError("has no text, only pictures: send its pages as images")
    return text.encode("utf-8", "replace").decode()  # single surrogates are no text


def _send(message: FromReader) -> None:
    rest = memoryview(encoded(message))
    while rest:
        rest = rest[os.write(_CONNECTION, rest) :]
