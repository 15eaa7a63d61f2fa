"""Stored conversations, which responses continue: a file for each."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from puna.errors import RequestError, ResponseNotFoundError, shown
from puna.server.http.bodies import MAX_MESSAGES
from puna.server.openai.responses.folder import KeptFolder

_ID: Final = re.compile(r"conv_[0-9a-f]{32}")


class StoredConversation(msgspec.Struct, frozen=True):
    """A conversation. `owner` is the digest of the key that made it; times in seconds since the epoch."""

    id: str
    created_at: int
    metadata: dict[str, str]
    items: list[dict[str, Any]]
    owner: str = ""


_decode = msgspec.json.Decoder(StoredConversation).decode


class KeptConversations:
    """A folder with a file for each conversation. All methods block."""

    def __init__(self, folder: Path, max_bytes: int, longest_bytes: int) -> None:
        """Limit all files to `max_bytes` (0: nothing is stored), and one conversation to `longest_bytes`."""
        self._files = KeptFolder(folder, max_bytes)
        self._longest_bytes = longest_bytes

    def create(self, owner: str, metadata: dict[str, str], items: list[dict[str, Any]]) -> StoredConversation:
        """Store a new conversation. Raises RequestError beyond the limits, and StoreError."""
        id = f"conv_{secrets.token_hex(16)}"
        return self._put(StoredConversation(id, int(time.time()), metadata, items, owner))

    def get(self, id: str, owner: str) -> StoredConversation:
        """Return a conversation. Raises StoreError, or ResponseNotFoundError, also for another owner."""
        found = self._files.get(_name(id), _decode)
        if found is None or found.id != id or found.owner != owner:
            raise _missing(id)
        return found

    def used(self, id: str, owner: str) -> StoredConversation:
        """Return a conversation like `get`, and mark it as used."""
        found = self.get(id, owner)
        self._files.touch(_name(id))
        return found

    def update(self, id: str, owner: str, metadata: dict[str, str]) -> StoredConversation:
        """Replace the metadata. Raises the errors of `get` and `create`."""
        return self._change(id, owner, lambda found: msgspec.structs.replace(found, metadata=metadata))

    def add(self, id: str, owner: str, items: Sequence[dict[str, Any]]) -> StoredConversation:
        """Add items at the end. Raises the errors of `get` and `create`."""
        return self._change(
            id, owner, lambda found: msgspec.structs.replace(found, items=[*found.items, *items])
        )

    def remove(self, id: str, owner: str, item: str) -> StoredConversation:
        """Remove an item. Raises the errors of `get`."""

        def without(found: StoredConversation) -> StoredConversation:
            item_of(found, item)
            rest = [one for one in found.items if one.get("id") != item]
            return msgspec.structs.replace(found, items=rest)

        return self._change(id, owner, without)

    def delete(self, id: str, owner: str) -> None:
        """Delete a conversation. Raises the errors of `get`."""
        self.get(id, owner)
        self._files.delete(_name(id))

    def _change(
        self, id: str, owner: str, change: Callable[[StoredConversation], StoredConversation]
    ) -> StoredConversation:
        with self._files.lock:
            return self._put(change(self.get(id, owner)))

    def _put(self, conversation: StoredConversation) -> StoredConversation:
        if len(conversation.items) > MAX_MESSAGES:
            raise RequestError(f"a conversation may have {MAX_MESSAGES:,} items: begin a new one")
        data = msgspec.json.encode(conversation)
        if len(data) > self._longest_bytes:
            raise RequestError(
                f"a conversation may be as long as a request, {self._longest_bytes >> 20} MB "
                "(PUNA_MAX_BODY_MB): begin a new one"
            )
        if not self._files.put(_name(conversation.id), data):
            raise RequestError("the conversation is larger than all may be together (PUNA_RESPONSES_MB)")
        return conversation


def item_of(conversation: StoredConversation, id: str) -> dict[str, Any]:
    """Return an item of a conversation. Raises ResponseNotFoundError."""
    found = next((item for item in conversation.items if item.get("id") == id), None)
    if found is None:
        raise ResponseNotFoundError(f"the conversation {conversation.id} has no item {shown(id)}")
    return found


def _name(id: str) -> str:
    if not _ID.fullmatch(id):
        raise _missing(id)
    return f"{id}.json"


def _missing(id: str) -> ResponseNotFoundError:
    return ResponseNotFoundError(
        f"conversation {shown(id)} not found: the least recently used ones make room for new ones"
    )
