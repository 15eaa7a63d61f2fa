"""Our own format: JSON of chats as the API gives them, with the files that their messages name in base64."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

import msgspec

from puna.server.history.chats import State, StoredCall, StoredChat
from puna.server.history.exchange.trees import (
    ReadChat,
    ReadFile,
    ReadMessage,
    UnreadableError,
    absent,
    keep,
    parents_first,
    time_s,
)

FORMAT: Final = "puna-chats"
VERSION: Final = 1

#: What stands before, between and after the chats of an export.
BEGIN: Final = msgspec.json.encode({"format": FORMAT, "version": VERSION})[:-1] + b',"chats":['
BETWEEN: Final = b",\n"
END: Final = b"]}\n"


def chat_begin(chat: StoredChat) -> bytes:
    """Return a chat up to its files; `file_part` writes each of them, and `CHAT_END` ends it."""
    fields = msgspec.structs.asdict(chat)
    del fields["snippet"]
    return msgspec.json.encode(fields)[:-1] + b',"files":{'


CHAT_END: Final = b"}}"


def file_part(id: str, data: bytes, *, first: bool) -> bytes:
    """Return the content of a file."""
    return (b"" if first else b",") + msgspec.json.encode(id) + b':"' + base64.b64encode(data) + b'"'


def file_ids(chat: StoredChat) -> list[str]:
    """Return the ids of the files that a chat's messages name, each once."""
    return [*dict.fromkeys(file.id for message in chat.messages for file in message.files)]


class _File(msgspec.Struct):
    id: str
    name: str = ""
    type: str = "application/octet-stream"


class _Message(msgspec.Struct):
    id: str
    role: str
    parent: str | None = None
    content: str = ""
    thinking: str = ""
    calls: list[StoredCall] = []
    tool_name: str = ""
    tool_call_id: str = ""
    files: list[_File] = []
    model: str = ""
    stats: dict[str, Any] | None = None
    error: str | None = None
    state: State = "done"
    created: float = 0.0


class _Chat(msgspec.Struct):
    messages: list[_Message]
    title: str = ""
    titled: bool = True
    created: float = 0.0
    updated: float = 0.0
    pinned: bool = False
    folder: str = ""
    tags: list[str] = []
    model: str = ""
    settings: dict[str, Any] = {}
    leaf: str | None = None
    files: dict[str, str] = {}


_decoder = msgspec.json.Decoder(_Chat)


def read_chat(text: bytes | memoryview) -> ReadChat:
    """Return the chat of a part of an export. Raises UnreadableError, msgspec.DecodeError."""
    chat = _decoder.decode(text)
    contents: dict[str, bytes] = {}
    ids = {id: keep(contents, _content(id, each)) for id, each in chat.files.items()}
    by_id = {each.id: each for each in chat.messages}
    places = {id: place for place, id in enumerate(parents_first({id: m.parent for id, m in by_id.items()}))}
    messages = []
    for id in places:
        message = by_id[id]
        files = [ReadFile(ids[each.id], each.name, each.type) for each in message.files if each.id in ids]
        notes = [absent(each.name) for each in message.files if each.id not in ids]
        messages.append(
            ReadMessage(
                parent=None if message.parent is None else places.get(message.parent),
                role=message.role,
                content="\n\n".join((message.content, *notes)),
                thinking=message.thinking,
                calls=message.calls,
                tool_name=message.tool_name,
                tool_call_id=message.tool_call_id,
                files=files,
                model=message.model,
                stats=message.stats,
                error=message.error,
                state="stopped" if message.state == "running" else message.state,
                created=time_s(message.created),
            )
        )
    return ReadChat(
        title=chat.title if chat.titled else "",
        created=time_s(chat.created),
        updated=time_s(chat.updated),
        messages=messages,
        leaf=None if chat.leaf is None else places.get(chat.leaf),
        pinned=chat.pinned,
        folder=chat.folder,
        tags=chat.tags,
        model=chat.model,
        settings=chat.settings,
        contents=contents,
    )


def _content(id: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UnreadableError(f"the file {id:.20} is not base64") from None
