"""The server's side of reading a PDF."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Final

from puna.errors import DocumentError, UnavailableError
from puna.reading import FileKind, FileReader
from puna.server.jobs.pdf.limits import MAX_BYTES, MEMORY_BYTES, SECONDS

_PDFS: Final = FileKind(
    "PDFs", Path(__file__).with_name("__main__.py"), ("pypdf",), DocumentError, "send it in parts"
)


def read_pdf(data: bytes) -> str:
    """Return the text of a PDF. Blocks.

    Raises DocumentError, also beyond a limit, UnavailableError without `pypdf`, and ReaderError. Messages of
    the first begin with what the document does or has, so that the caller can name it.
    """
    if find_spec("pypdf") is None:
        raise UnavailableError(
            "reading a PDF needs the package pypdf; install it with: pip install 'puna[pdf]'"
        )
    if len(data) > MAX_BYTES:
        raise DocumentError(f"is larger than {MAX_BYTES >> 20} MB: send it in parts")
    reader = FileReader(_PDFS, data, seconds=SECONDS, memory_bytes=MEMORY_BYTES)
    return b"".join(reader.pieces()).decode()
