"""Documents within messages, in base64: PDF files, whose text is read, and text files."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from puna.errors import DocumentError, RequestError, UnavailableError, shown
from puna.server.jobs.images import from_base64
from puna.server.jobs.pdf.client import read_pdf
from puna.server.jobs.service import Service

#: Maximum documents of one request, each of which takes a process.
_MAX_FILES: Final = 16

_PDF: Final = "application/pdf"
_DATA_URL: Final = re.compile(
    r"data:(?P<type>[\w.+/-]{1,100})(?:;[\w.+-]{1,40}=[\w.+-]{1,40})*;base64,", re.I
)


@dataclass(frozen=True)
class File:
    """A file within a request, in base64; `put` puts its text in its place. Errors call it `where`."""

    where: str
    media_type: str
    data: str
    put: Callable[[str], None]

    @classmethod
    def of_data(cls, where: str, given: str, put: Callable[[str], None]) -> File:
        """Return the file of an OpenAI part: a data URL, or a PDF in base64 alone."""
        if (prefix := _DATA_URL.match(given)) is None:
            return cls(where, _PDF, given, put)
        return cls(where, prefix["type"].lower(), given[prefix.end() :], put)


async def read_files(backend: Service, files: Iterable[File]) -> None:
    """Put the text of all files in their places. Raises RequestError, UnavailableError and ReaderError."""
    found = list(files)
    if len(found) > _MAX_FILES:
        raise RequestError(f"a request may have {_MAX_FILES} files, not {len(found):,}")
    for file in found:
        file.put(await _text(backend, file))


async def _text(backend: Service, file: File) -> str:
    try:
        data = from_base64(file.data)
    except RequestError:
        raise RequestError(f"{file.where}: the file's data must be base64") from None
    if file.media_type.startswith("text/"):
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise RequestError(f"{file.where}: the file must be UTF-8 text") from None
    if file.media_type != _PDF:
        raise UnavailableError(
            f"{file.where}: files of the type {shown(file.media_type)} cannot be read, only {_PDF} and text"
        )
    async with backend.reading:
        try:
            return await asyncio.to_thread(read_pdf, data)
        except DocumentError as error:
            raise DocumentError(f"{file.where}: the PDF {error}") from None
        except UnavailableError as error:
            raise UnavailableError(f"{file.where}: {error}") from None
