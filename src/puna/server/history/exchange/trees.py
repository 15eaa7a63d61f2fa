"""Chats read from files: trees of messages whose parents come first, without ids of ours."""

from __future__ import annotations

import hashlib
import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from puna.server.history.chats import MAX_NAME, MAX_TAGS, MAX_TITLE, State, StoredCall

#: Roles of messages that are kept, by the names that programs give them.
ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}

#: Files with times in other units than seconds are of these many units a second.
_UNITS: Final = (1.0, 1e3, 1e6, 1e9)
_LATEST_S: Final = 1e11  # the year 5138


class ReadFile(msgspec.Struct, frozen=True):
    """A file of a message; `id` is the SHA-256 of its content."""

    id: str
    name: str
    type: str


class ReadMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message; `parent` is the place of an earlier one, `created` is 0 where the time is unknown."""

    parent: int | None
    role: str
    content: str = ""
    thinking: str = ""
    calls: list[StoredCall] = []
    tool_name: str = ""
    tool_call_id: str = ""
    files: list[ReadFile] = []
    model: str = ""
    stats: dict[str, Any] | None = None
    error: str | None = None
    state: State = "done"
    created: float = 0.0


class ReadChat(msgspec.Struct, frozen=True, kw_only=True):
    """A chat with the contents of its files by id; `leaf` is the place of the last message shown."""

    title: str
    created: float
    updated: float
    messages: list[ReadMessage]
    leaf: int | None
    pinned: bool = False
    folder: str = ""
    tags: list[str] = []
    model: str = ""
    settings: dict[str, Any] = {}
    contents: dict[str, bytes] = {}


class UnreadableError(Exception):
    """A chat of a file cannot be read; the message says why."""


def digest(chat: ReadChat) -> str:
    """Return what tells whether a chat has been imported before."""
    return hashlib.sha256(msgspec.msgpack.encode(chat, order="deterministic")).hexdigest()


def keep(contents: dict[str, bytes], data: bytes) -> str:
    """Add the content of a file, and return its id."""
    id = hashlib.sha256(data).hexdigest()
    contents[id] = data
    return id


def absent(name: str) -> str:
    """Return the note for a file whose content an export does not have."""
    return f"[{name}: not in the export]"


def parents_first(parents: Mapping[str, str | None]) -> list[str]:
    """Return the ids in their order, but every one after its parent. Circles are left out."""
    place = {id: number for number, id in enumerate(parents)}
    names = [*parents]
    children: dict[str, list[int]] = {}
    ready = []
    for id, parent in parents.items():
        if parent is None or parent not in place:
            ready.append(place[id])
        else:
            children.setdefault(parent, []).append(place[id])
    heapq.heapify(ready)
    found = []
    while ready:
        id = names[heapq.heappop(ready)]
        found.append(id)
        for child in children.get(id, ()):
            heapq.heappush(ready, child)
    return found


def time_s(value: Any) -> float:
    """Return a time in seconds since the epoch, given in whichever unit; 0 if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    for unit in _UNITS:
        if 0 < value / unit < _LATEST_S and math.isfinite(value):
            return float(value / unit)
    return 0.0


def title_of(value: Any) -> str:
    """Return a title as one line that is not too long."""
    return " ".join(value.split())[:MAX_TITLE].strip() if isinstance(value, str) else ""


def tags_of(values: Any) -> list[str]:
    """Return the texts of a list as tags that are neither too long nor too many."""
    if not isinstance(values, list):
        return []
    names = [" ".join(each.split())[:MAX_NAME].strip() for each in values if isinstance(each, str)]
    return [*dict.fromkeys(name for name in names if name)][:MAX_TAGS]


def text_of(value: Any) -> str:
    """Return a value if it is a text, else nothing."""
    return value if isinstance(value, str) else ""


def last_model(messages: Sequence[ReadMessage]) -> str:
    """Return the model of the last answer."""
    return next((each.model for each in reversed(messages) if each.model), "")


def latest(times: Iterable[float]) -> float:
    """Return the latest of times; 0 if there is none."""
    return max(times, default=0.0)
