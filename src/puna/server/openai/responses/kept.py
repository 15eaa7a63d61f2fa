"""Stored responses, from which later requests can continue: files in a folder of bounded size."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from pathlib import Path
from typing import Any, Final

import msgspec

from puna.errors import RequestError, ResponseNotFoundError, StoreError, shown
from puna.store.blobs import storage_errors, write_atomically

_ID: Final = re.compile(r"resp_[0-9a-f]{32}")

#: Maximum responses of a conversation that a request continues.
_LONGEST_CHAIN: Final = 4096

#: Maximum files, however small.
_MAX_FILES: Final = 10_000

_log = logging.getLogger(__name__)


class Document(msgspec.Struct, frozen=True):
    """A response with the input items it answers. `owner` is the digest of the key that requested it."""

    response: dict[str, Any]
    input: list[dict[str, Any]]
    previous: str | None = None
    owner: str = ""


def _decoded(data: bytes, id: str) -> Document:
    """Decode the document of the response with this id. Raises ValueError if it is not one."""
    document = msgspec.json.decode(data, type=Document)
    output = document.response.get("output")
    if document.response.get("id") != id or not isinstance(output, list):
        raise ValueError("it is not the response with this id")
    if not all(
        isinstance(item, dict) and isinstance(item.get("type"), str) for item in [*document.input, *output]
    ):
        raise ValueError("it has items without a type")
    return document


class KeptResponses:
    """A folder with a file for each response; the least recently used ones make room for new ones.

    Several processes may share the folder. All methods block.
    """

    def __init__(self, folder: Path, max_bytes: int, longest_bytes: int) -> None:
        """Limit all files to `max_bytes` (0: nothing is stored), and one conversation to `longest_bytes`."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._longest_bytes = longest_bytes
        self._lock = threading.Lock()

    def put(self, document: Document) -> bool:
        """Store `document`; return False if it alone exceeds the limit. Raises StoreError."""
        data = msgspec.json.encode(document)
        if len(data) > self._max_bytes:
            return False
        with self._lock, storage_errors("store a response in", self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._make_room(len(data))
            path = self._path(document.response["id"])
            write_atomically(path, data, self._folder)
            path.chmod(0o600)  # conversations are private
        return True

    def get(self, id: str, owner: str) -> Document:
        """Return a stored response. Raises StoreError, or ResponseNotFoundError, also for another owner."""
        return self._read(id, owner)[0]

    def delete(self, id: str, owner: str) -> None:
        """Delete a stored response. Raises the errors of `get`."""
        self.get(id, owner)
        with storage_errors("delete a response from", self._folder):
            self._path(id).unlink(missing_ok=True)

    def chain(self, id: str, owner: str) -> list[Document]:
        """Return the responses up to `id`, each a continuation of the one before, and mark them as used.

        Raises RequestError if one of them is missing, or they are too long for a request.
        """
        found: list[Document] = []
        size = 0
        here: str | None = id
        while here is not None:
            try:
                document, length = self._read(here, owner)
            except ResponseNotFoundError:
                what = "" if here == id else f", which {shown(id)} continues,"
                raise RequestError(
                    f"previous response {shown(here)}{what} not found: the least recently used "
                    "responses make room for new ones (PUNA_RESPONSES_MB); send the conversation as input"
                ) from None
            found.append(document)
            size += length
            if size > self._longest_bytes or len(found) > _LONGEST_CHAIN:
                raise RequestError(
                    f"the conversation up to {shown(id)} is longer than a request may be: begin a new one"
                )
            with contextlib.suppress(OSError):
                os.utime(self._path(here))
            here = document.previous
        return found[::-1]

    def _read(self, id: str, owner: str) -> tuple[Document, int]:
        try:
            data = self._path(id).read_bytes()
            document = _decoded(data, id)
        except FileNotFoundError:
            raise ResponseNotFoundError(f"response {shown(id)} not found") from None
        except (ValueError, RecursionError) as error:  # it is lost, whatever happened to the file
            _log.warning("the stored response %s is damaged and counts as missing: %s", id, error)
            raise ResponseNotFoundError(f"response {shown(id)} not found: its file is damaged") from None
        except OSError as error:
            raise StoreError(f"the stored response {shown(id)} cannot be read: {error}") from error
        if document.owner != owner:
            raise ResponseNotFoundError(f"response {shown(id)} not found")
        return document, len(data)

    def _path(self, id: str) -> Path:
        if not _ID.fullmatch(id):
            raise ResponseNotFoundError(f"response {shown(id)} not found")
        return self._folder / f"{id}.json"

    def _make_room(self, size: int) -> None:
        """Delete the least recently used responses until there is room for `size` more bytes."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        found.sort(reverse=True)
        total = size + sum(size for _, size, _ in found)
        while found and (total > self._max_bytes or len(found) >= _MAX_FILES):
            _, gone, path = found.pop()
            total -= gone
            Path(path).unlink(missing_ok=True)
