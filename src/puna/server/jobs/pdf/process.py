"""The reader process: reads the text of one document."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Final

from pypdf import PdfReader

from puna.errors import DocumentError, PunaError
from puna.reading import serve
from puna.server.jobs.pdf.limits import MAX_CHARACTERS, MAX_PAGES

#: Errors of pypdf quote the file; longer ones are cut.
_REASON_CHARS: Final = 500


def main() -> None:
    """Read the document that the owner sends."""
    logging.disable()  # remarks about the file are for nobody
    serve(lambda data, _: pieces_of(data))


def pieces_of(data: bytes) -> Iterator[bytes]:
    """Yield the text of a PDF in UTF-8, an empty line between pages. Raises DocumentError."""
    try:
        yield _text_of(data).encode("utf-8", "replace")  # single surrogates are no text
    except (PunaError, MemoryError):
        raise
    except Exception as error:  # pypdf raises anything for a damaged file
        reason = f"{type(error).__name__}: {error}"[:_REASON_CHARS]
        raise DocumentError(f"is damaged, or of a kind that pypdf cannot read: {reason}") from error


def _text_of(data: bytes) -> str:
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
    return text
