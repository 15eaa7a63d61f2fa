"""Stored responses, from which later requests can continue: a file for each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec

from puna.errors import RequestError, ResponseNotFoundError, shown
from puna.server.openai.responses.folder import KeptFolder

_ID: Final = re.compile(r"resp_[0-9a-f]{32}")

#: Maximum responses of a conversation that a request continues.
_LONGEST_CHAIN: Final = 4096

#: States of responses that a background task is working on.
UNFINISHED: Final = ("queued", "in_progress")


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
    """A folder with a file for each response. All methods block."""

    def __init__(self, folder: Path, max_bytes: int, longest_bytes: int) -> None:
        """Limit all files to `max_bytes` (0: nothing is stored), and one conversation to `longest_bytes`."""
        self._files = KeptFolder(folder, max_bytes)
        self._longest_bytes = longest_bytes

    def put(self, document: Document) -> bool:
        """Store `document`; return False if it alone exceeds the limit. Raises StoreError."""
        return self._files.put(_name(document.response["id"]), msgspec.json.encode(document))

    def get(self, id: str, owner: str) -> Document:
        """Return a stored response. Raises StoreError, or ResponseNotFoundError, also for another owner."""
        return self._read(id, owner)[0]

    def delete(self, id: str, owner: str) -> None:
        """Delete a stored response. Raises the errors of `get`."""
        self.get(id, owner)
        self._files.delete(_name(id))

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
            if document.response.get("status") in UNFINISHED:
                raise RequestError(f"previous response {shown(here)} is not complete yet: wait for its end")
            found.append(document)
            size += length
            if size > self._longest_bytes or len(found) > _LONGEST_CHAIN:
                raise RequestError(
                    f"the conversation up to {shown(id)} is longer than a request may be: begin a new one"
                )
            self._files.touch(_name(here))
            here = document.previous
        return found[::-1]

    def _read(self, id: str, owner: str) -> tuple[Document, int]:
        """Return a stored response and the bytes of its file. Raises the errors of `get`."""
        found = self._files.get(_name(id), lambda data: (_decoded(data, id), len(data)))
        if found is None or found[0].owner != owner:
            raise _missing(id)
        return found


def _name(id: str) -> str:
    """Return the name of a response's file. Raises ResponseNotFoundError."""
    if not _ID.fullmatch(id):
        raise _missing(id)
    return f"{id}.json"


def _missing(id: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(f"response {shown(id)} not found")
