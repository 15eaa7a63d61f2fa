"""Chats in the history: trees of messages with files, found by folder, tag and text.

Every function takes a connection within a transaction (see `HistoryDatabase.run`) and the owner whose rows it
may see; rows of others do not exist for it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from puna.errors import ChatNotFoundError, RequestError

MAX_MESSAGES: Final = 50_000  # of a chat
MAX_CONTENT: Final = 16_000_000  # characters of a message
MAX_FILES: Final = 64  # of a message
MAX_TITLE: Final = 300
MAX_SHOWN_TITLE: Final = 80  # of a title made from the first question
MAX_NAME: Final = 100  # characters of a folder, tag or preset
MAX_TAGS: Final = 32
MAX_SETTINGS_BYTES: Final = 64 << 10
MAX_PRESETS: Final = 500
MAX_QUERY: Final = 200
MAX_LISTED: Final = 200

#: How long a deleted chat can be restored, and an uploaded file waits for a message.
UNDO_S: Final = 60.0
UNUSED_FILE_S: Final = 3600.0
#: How long an import may take to add one chat.
_IMPORT_S: Final = 3600.0

State = Literal["done", "running", "stopped", "failed"]


class StoredFile(msgspec.Struct, frozen=True):
    """A file as messages name it; `id` is the SHA-256 of its content, `size` is in bytes."""

    id: str
    name: str
    type: str
    size: int


class StoredCall(msgspec.Struct, frozen=True):
    """A tool call; `arguments` is JSON."""

    id: str
    name: str
    arguments: str


class StoredMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message; those with one `parent` are branches. `stats` are those of the event `done` of its run."""

    id: str
    parent: str | None
    role: str
    content: str = ""
    thinking: str = ""
    calls: list[StoredCall] = []
    tool_name: str = ""
    tool_call_id: str = ""
    files: list[StoredFile] = []
    model: str = ""
    stats: dict[str, Any] | None = None
    error: str | None = None
    state: State = "done"
    created: float


class Fragment(msgspec.Struct, frozen=True):
    """A part of a found text; `hit` if it is what was searched for."""

    text: str
    hit: bool


class ChatHead(msgspec.Struct, frozen=True, kw_only=True):
    """A chat without its messages. Times are seconds since the epoch.

    One that nobody gave a title is named after its first question (`titled` is false).
    """

    id: str
    title: str
    titled: bool
    created: float
    updated: float
    pinned: bool
    folder: str
    tags: list[str]
    model: str
    snippet: list[Fragment] | None = None


class StoredChat(ChatHead, frozen=True, kw_only=True):
    """A chat with the messages of all branches, oldest first; the path to `leaf` is shown."""

    settings: dict[str, Any]
    leaf: str | None
    messages: list[StoredMessage]


class NameCount(msgspec.Struct, frozen=True):
    name: str
    count: int


class ChatPage(msgspec.Struct, frozen=True):
    """Some chats; `cursor` asks for the next ones."""

    chats: list[ChatHead]
    cursor: str | None
    folders: list[NameCount]
    tags: list[NameCount]


class MessageDraft(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be added; `files` are ids of uploaded files, with the name the message gives each."""

    parent: str | None
    role: str
    content: str = ""
    thinking: str = ""
    calls: Sequence[StoredCall] = ()
    tool_name: str = ""
    tool_call_id: str = ""
    files: Sequence[tuple[str, str]] = ()
    model: str = ""
    stats: dict[str, Any] | None = None
    error: str | None = None
    state: State = "done"
    created: float = 0.0  # 0: now


# --- chats ----------------------------------------------------------------------------------------------


def add_chat(
    connection: sqlite3.Connection,
    owner: str,
    *,
    title: str = "",
    folder: str = "",
    tags: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    pinned: bool = False,
    created: float = 0.0,
) -> StoredChat:
    """Add an empty chat. Raises RequestError."""
    number = connection.execute(
        "INSERT INTO chat (id, owner, title, folder, pinned, model, settings, created, updated)"
        " VALUES (?, ?, ?, ?, ?, '', ?, ?, ?)",
        (
            new_id(), owner, _checked("title", title, MAX_TITLE), _checked("folder", folder, MAX_NAME),
            pinned, _settings(settings or {}), created or time.time(), created or time.time(),
        ),
    ).lastrowid  # fmt: skip
    _set_tags(connection, number, tags)
    return _chat(connection, connection.execute("SELECT * FROM chat WHERE number = ?", (number,)).fetchone())


def get_chat(connection: sqlite3.Connection, owner: str, id: str) -> StoredChat:
    """Return a chat. Raises ChatNotFoundError."""
    return _chat(connection, _row(connection, owner, id))


def change_chat(connection: sqlite3.Connection, owner: str, id: str, changes: Mapping[str, Any]) -> ChatHead:
    """Set those of title, pinned, folder, tags, settings and leaf that `changes` has. Raises RequestError."""
    row = _row(connection, owner, id)
    number = row["number"]
    columns: dict[str, Any] = {}
    for name, value in changes.items():
        match name:
            case "title":
                columns["title"] = _checked("title", value, MAX_TITLE)
            case "folder":
                columns["folder"] = _checked("folder", value, MAX_NAME)
            case "pinned":
                columns["pinned"] = bool(value)
            case "settings":
                columns["settings"] = _settings(value)
            case "leaf":
                columns["leaf"] = _message_row(connection, number, value)["id"]
            case "tags":
                _set_tags(connection, number, value)
    if columns:
        assignments = ", ".join(f"{name} = ?" for name in columns)
        connection.execute(f"UPDATE chat SET {assignments} WHERE number = ?", (*columns.values(), number))
    return _head(connection, _row(connection, owner, id))


def list_chats(
    connection: sqlite3.Connection,
    owner: str,
    *,
    query: str = "",
    folder: str = "",
    tag: str = "",
    cursor: str = "",
    limit: int = 50,
) -> ChatPage:
    """Return up to `limit` chats: pinned ones first, then by their last change; or those that `query` finds.

    A query is words that must all occur in the title or in one message. Raises RequestError.
    """
    if len(query) > MAX_QUERY:
        raise RequestError(f"a search has at most {MAX_QUERY} characters")
    limit = min(max(limit, 1), MAX_LISTED)
    conditions, values = ["chat.owner = ?", "chat.deleted IS NULL"], [owner]
    if folder:
        conditions.append("chat.folder = ?")
        values.append(folder)
    if tag:
        conditions.append("chat.number IN (SELECT tag.chat FROM tag WHERE name = ?)")
        values.append(tag)
    if words := query.split():
        heads = _found(connection, conditions, values, words, limit)
        next_cursor = None
    else:
        heads, next_cursor = _listed(connection, conditions, values, cursor, limit)
    return ChatPage(
        chats=heads,
        cursor=next_cursor,
        folders=_counts(
            connection,
            "SELECT folder, count(*) FROM chat"
            " WHERE owner = ? AND deleted IS NULL AND folder <> '' GROUP BY 1",
            owner,
        ),
        tags=_counts(
            connection,
            "SELECT name, count(*) FROM tag JOIN chat ON number = chat"
            " WHERE owner = ? AND deleted IS NULL GROUP BY 1",
            owner,
        ),
    )


def _listed(
    connection: sqlite3.Connection, conditions: list[str], values: list[str], cursor: str, limit: int
) -> tuple[list[ChatHead], str | None]:
    conditions, given = [*conditions], [*values, *_position(cursor)]
    if cursor:
        conditions.append("(pinned, updated, number) < (?, ?, ?)")
    rows = connection.execute(
        f"SELECT * FROM chat WHERE {' AND '.join(conditions)}"
        " ORDER BY pinned DESC, updated DESC, number DESC LIMIT ?",
        (*given, limit + 1),
    ).fetchall()
    last = rows[limit - 1] if len(rows) > limit else None
    following = f"{last['pinned']}~{last['updated']!r}~{last['number']}" if last is not None else None
    return [_head(connection, row) for row in rows[:limit]], following


def _position(cursor: str) -> tuple[Any, ...]:
    if not cursor:
        return ()
    try:
        pinned, updated, number = cursor.split("~")
        return int(pinned), float(updated), int(number)
    except ValueError:
        raise RequestError("the cursor is not one that a list of chats ended with") from None


def _found(
    connection: sqlite3.Connection, conditions: list[str], values: list[str], words: list[str], limit: int
) -> list[ChatHead]:
    """Return the chats whose title has all `words`, then those with a message that does, newest first."""
    where = " AND ".join(conditions)
    like = [f"%{_LIKE.sub(_ESCAPED, word)}%" for word in words]
    in_title = " AND ".join(["title LIKE ? ESCAPE '\\'"] * len(words))
    titled = connection.execute(
        f"SELECT * FROM chat WHERE {where} AND {in_title} ORDER BY updated DESC LIMIT ?",
        (*values, *like, limit),
    ).fetchall()
    # The index has runs of three characters; shorter words are looked for in the messages themselves.
    indexed = [word for word in words if len(word) >= 3]
    short = [one for one, word in zip(like, words, strict=True) if len(word) < 3]
    tests, given = [], []
    if indexed:
        tests.append("message.number IN (SELECT rowid FROM message_text WHERE message_text MATCH ?)")
        given.append(" AND ".join('"' + word.replace('"', '""') + '"' for word in indexed))
    tests += ["message.content LIKE ? ESCAPE '\\'"] * len(short)
    messages = connection.execute(
        f"SELECT chat.*, max(message.number) AS hit FROM message JOIN chat ON chat.number = message.chat"
        f" WHERE {where} AND {' AND '.join(tests)} GROUP BY chat.number ORDER BY hit DESC LIMIT ?",
        (*values, *given, *short, limit),
    ).fetchall()
    hits = {row["number"]: row["hit"] for row in messages}
    rows = {row["number"]: row for row in (*titled, *messages)}
    heads = []
    for number, row in [*rows.items()][:limit]:
        snippet = _snippet(connection, hits[number], words) if number in hits else None
        heads.append(msgspec.structs.replace(_head(connection, row), snippet=snippet))
    return heads


_LIKE: Final = re.compile(r"[\\%_]")
_ESCAPED: Final = r"\\\g<0>"

#: Characters before the first hit of a snippet, and in all.
_BEFORE: Final = 40
_SNIPPET: Final = 200


def _snippet(connection: sqlite3.Connection, number: int, words: Sequence[str]) -> list[Fragment]:
    """Return the part of a message around the first of `words`, with every one of them marked."""
    (content,) = connection.execute("SELECT content FROM message WHERE number = ?", (number,)).fetchone()
    pattern = re.compile("|".join(re.escape(word) for word in sorted(words, key=len, reverse=True)), re.I)
    first = pattern.search(content)
    begin = max(first.start() - _BEFORE, 0) if first is not None else 0
    text = ("…" if begin else "") + " ".join(content[begin : begin + _SNIPPET].split())
    fragments, at = [], 0
    for hit in pattern.finditer(text):
        if hit.start() > at:
            fragments.append(Fragment(text[at : hit.start()], hit=False))
        fragments.append(Fragment(hit[0], hit=True))
        at = hit.end()
    return [*fragments, Fragment(text[at:], hit=False)] if at < len(text) else fragments


def _counts(connection: sqlite3.Connection, statement: str, owner: str) -> list[NameCount]:
    return [NameCount(*row) for row in connection.execute(f"{statement} ORDER BY 1", (owner,))]


def delete_chat(connection: sqlite3.Connection, owner: str, id: str) -> None:
    """Hide a chat; `restore_chat` brings it back until `purge` removes it. Raises ChatNotFoundError."""
    number = _row(connection, owner, id)["number"]
    connection.execute("UPDATE chat SET deleted = ? WHERE number = ?", (time.time(), number))


def restore_chat(connection: sqlite3.Connection, owner: str, id: str) -> ChatHead:
    """Undo `delete_chat`. Raises ChatNotFoundError."""
    connection.execute("UPDATE chat SET deleted = NULL WHERE owner = ? AND id = ?", (owner, id))
    return _head(connection, _row(connection, owner, id))


def delete_all(connection: sqlite3.Connection, owner: str) -> int:
    """Hide all chats of `owner`, and return how many; they are removed as those of `delete_chat` are."""
    return connection.execute(
        "UPDATE chat SET deleted = ? WHERE owner = ? AND deleted IS NULL", (time.time(), owner)
    ).rowcount


def needs_purge(connection: sqlite3.Connection, now: float) -> bool:
    """Whether `purge` would remove anything."""
    (found,) = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM chat WHERE deleted < ?)"
        " OR EXISTS (SELECT 1 FROM file WHERE created < ?"
        " AND number NOT IN (SELECT file FROM message_file))",
        (now - UNDO_S, now - UNUSED_FILE_S),
    ).fetchone()
    return bool(found)


def purge(connection: sqlite3.Connection, now: float) -> None:
    """Remove chats deleted before `UNDO_S`, and files that no message has had for `UNUSED_FILE_S`."""
    connection.execute("DELETE FROM chat WHERE deleted < ?", (now - UNDO_S,))
    connection.execute(
        "DELETE FROM file WHERE created < ? AND number NOT IN (SELECT file FROM message_file)",
        (now - UNUSED_FILE_S,),
    )


def end_interrupted(connection: sqlite3.Connection) -> None:
    """Mark answers as stopped that were under way when the server ended."""
    connection.execute(
        "UPDATE message SET state = 'stopped', error = 'the server was stopped' WHERE state = 'running'"
    )


# --- messages -------------------------------------------------------------------------------------------


def add_message(connection: sqlite3.Connection, owner: str, chat: str, draft: MessageDraft) -> StoredMessage:
    """Add a message under its parent, or at the beginning, and show it. Raises RequestError."""
    number = _row(connection, owner, chat)["number"]
    if draft.parent is not None:
        _message_row(connection, number, draft.parent)
    (count,) = connection.execute("SELECT count(*) FROM message WHERE chat = ?", (number,)).fetchone()
    if count >= MAX_MESSAGES:
        raise RequestError(f"a chat has at most {MAX_MESSAGES:,} messages; begin another")
    id, now = new_id(), draft.created or time.time()
    row = _insert_message(connection, owner, number, id, draft, now)
    connection.execute(
        "UPDATE chat SET leaf = ?, updated = ?, model = CASE WHEN ? = '' THEN model ELSE ? END"
        " WHERE number = ?",
        (id, max(now, _row(connection, owner, chat)["updated"]), draft.model, draft.model, number),
    )
    return _messages(connection, "message.number = ?", (row,))[0]


def _insert_message(
    connection: sqlite3.Connection, owner: str, chat: int, id: str, draft: MessageDraft, now: float
) -> int | None:
    """Insert a message and return its number; whether its parent exists is the caller's business."""
    if len(draft.files) > MAX_FILES:
        raise RequestError(f"a message has at most {MAX_FILES} files")
    row = connection.execute(
        "INSERT INTO message (id, chat, parent, role, content, thinking, calls, tool_name, tool_call_id,"
        " model, stats, error, state, created) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            id, chat, draft.parent, _checked("role", draft.role, MAX_NAME),
            _checked("content", draft.content, MAX_CONTENT),
            _checked("thinking", draft.thinking, MAX_CONTENT), _json(list(draft.calls)),
            _checked("tool_name", draft.tool_name, MAX_TITLE),
            _checked("tool_call_id", draft.tool_call_id, MAX_TITLE), draft.model,
            None if draft.stats is None else _json(draft.stats), draft.error, draft.state, now,
        ),
    ).lastrowid  # fmt: skip
    for place, (file, name) in enumerate(draft.files):
        found = _file_row(connection, owner, file)
        connection.execute(
            "INSERT INTO message_file (message, place, file, name) VALUES (?, ?, ?, ?)",
            (row, place, found["number"], _checked("name", name, MAX_TITLE) or found["name"]),
        )
    return row


def add_messages(
    connection: sqlite3.Connection, owner: str, chat: str, drafts: Sequence[MessageDraft]
) -> list[StoredMessage]:
    """Add several messages; see `add_message`."""
    return [add_message(connection, owner, chat, draft) for draft in drafts]


def update_answer(
    connection: sqlite3.Connection,
    id: str,
    *,
    content: str,
    thinking: str,
    calls: Sequence[StoredCall],
    state: State,
    stats: dict[str, Any] | None = None,
    error: str | None = None,
) -> None:
    """Write what an answer has come to; one whose chat has been deleted meanwhile is skipped."""
    connection.execute(
        "UPDATE message SET content = ?, thinking = ?, calls = ?, state = ?, stats = ?, error = ?"
        " WHERE id = ?",
        (content, thinking, _json(list(calls)), state, None if stats is None else _json(stats), error, id),
    )
    if state != "running":
        connection.execute(
            "UPDATE chat SET updated = ? WHERE number = (SELECT chat FROM message WHERE id = ?)",
            (time.time(), id),
        )


def set_title(connection: sqlite3.Connection, owner: str, chat: str, title: str) -> bool:
    """Give a chat without a title this one, and return whether it had none."""
    return (
        connection.execute(
            "UPDATE chat SET title = ? WHERE owner = ? AND id = ? AND title = ''", (title, owner, chat)
        ).rowcount
        > 0
    )


# --- import ---------------------------------------------------------------------------------------------


def begin_import(
    connection: sqlite3.Connection,
    owner: str,
    source: str,
    *,
    title: str,
    folder: str,
    tags: Sequence[str],
    settings: Mapping[str, Any],
    pinned: bool,
    created: float,
) -> int | None:
    """Add a chat that stays hidden until `finish_import`, and return its number.

    Returns None if the owner has a chat with this `source`, the digest of an imported chat. A chat that is
    never finished is removed after an hour. Raises RequestError.
    """
    if connection.execute(
        "SELECT 1 FROM chat WHERE owner = ? AND source = ? AND deleted IS NULL", (owner, source)
    ).fetchone():
        return None
    now = time.time()
    number = connection.execute(
        "INSERT INTO chat (id, owner, title, folder, pinned, model, settings, created, updated,"
        " deleted, source) VALUES (?, ?, ?, ?, ?, '', ?, ?, ?, ?, ?)",
        (
            new_id(), owner, _checked("title", title, MAX_TITLE), _checked("folder", folder, MAX_NAME),
            pinned, _settings(settings), created or now, created or now, now + _IMPORT_S, source,
        ),
    ).lastrowid  # fmt: skip
    _set_tags(connection, number, tags)
    return number


def add_imported(
    connection: sqlite3.Connection, owner: str, chat: int, drafts: Iterable[tuple[str, MessageDraft]]
) -> None:
    """Add messages with ids from `new_id` to a chat of `begin_import`. Raises RequestError."""
    now = time.time()
    for id, draft in drafts:
        _insert_message(connection, owner, chat, id, draft, draft.created or now)


def finish_import(
    connection: sqlite3.Connection, owner: str, chat: int, *, leaf: str | None, model: str, updated: float
) -> None:
    """Show an imported chat."""
    connection.execute(
        "UPDATE chat SET deleted = NULL, leaf = ?, model = ?, updated = ? WHERE owner = ? AND number = ?",
        (leaf, model[:MAX_TITLE], updated or time.time(), owner, chat),
    )


def drop_import(connection: sqlite3.Connection, owner: str, chat: int) -> None:
    """Remove a chat of `begin_import` that cannot be finished."""
    connection.execute("DELETE FROM chat WHERE owner = ? AND number = ?", (owner, chat))


def chat_ids(connection: sqlite3.Connection, owner: str) -> list[str]:
    """Return the ids of all chats of `owner`, in the order in which they were made."""
    rows = connection.execute(
        "SELECT id FROM chat WHERE owner = ? AND deleted IS NULL ORDER BY number", (owner,)
    )
    return [id for (id,) in rows]


# --- files and presets ----------------------------------------------------------------------------------


def add_file(connection: sqlite3.Connection, owner: str, name: str, type: str, data: bytes) -> StoredFile:
    """Keep a file for messages that will name it; equal contents are kept once."""
    id = hashlib.sha256(data).hexdigest()
    name, type = name[:MAX_TITLE], type[:MAX_NAME]
    connection.execute(
        "INSERT INTO file (owner, id, name, type, data, created) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (owner, id) DO UPDATE SET created = excluded.created",
        (owner, id, name, type, data, time.time()),
    )
    return StoredFile(id, name, type, len(data))


def get_file(connection: sqlite3.Connection, owner: str, id: str) -> tuple[StoredFile, bytes]:
    """Return a file and its content. Raises ChatNotFoundError."""
    row = _file_row(connection, owner, id)
    (data,) = connection.execute("SELECT data FROM file WHERE number = ?", (row["number"],)).fetchone()
    return StoredFile(row["id"], row["name"], row["type"], len(data)), data


def presets(connection: sqlite3.Connection, owner: str) -> dict[str, Any]:
    """Return the settings of the owner's presets by name."""
    rows = connection.execute("SELECT name, settings FROM preset WHERE owner = ? ORDER BY name", (owner,))
    return {row["name"]: msgspec.json.decode(row["settings"]) for row in rows}


def put_preset(connection: sqlite3.Connection, owner: str, name: str, settings: Mapping[str, Any]) -> None:
    """Add a preset or replace the one of that name. Raises RequestError."""
    if not name.strip() or name != _checked("name", name, MAX_NAME):
        raise RequestError("a preset needs a name")
    (count,) = connection.execute("SELECT count(*) FROM preset WHERE owner = ?", (owner,)).fetchone()
    if count >= MAX_PRESETS:
        raise RequestError(f"there are {MAX_PRESETS} presets, the most that are kept; delete some")
    connection.execute(
        "INSERT OR REPLACE INTO preset (owner, name, settings) VALUES (?, ?, ?)",
        (owner, name, _settings(settings)),
    )


def delete_preset(connection: sqlite3.Connection, owner: str, name: str) -> None:
    """Remove a preset. Raises ChatNotFoundError."""
    if not connection.execute("DELETE FROM preset WHERE owner = ? AND name = ?", (owner, name)).rowcount:
        raise ChatNotFoundError(f"there is no preset '{name}'")


# --- rows -----------------------------------------------------------------------------------------------


def new_id() -> str:
    """Return a fresh id of a chat or message."""
    return secrets.token_hex(8)


def _checked(name: str, text: str, longest: int) -> str:
    if len(text) > longest:
        raise RequestError(f"{name}: more than {longest:,} characters")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name}: half a surrogate pair is not a character") from None
    return text


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _settings(value: Mapping[str, Any]) -> str:
    text = _json(value)
    if len(text) > MAX_SETTINGS_BYTES:
        raise RequestError(f"settings: more than {MAX_SETTINGS_BYTES >> 10} KB")
    return text


def _set_tags(connection: sqlite3.Connection, number: int | None, tags: Sequence[str]) -> None:
    names = list(dict.fromkeys(name.strip() for name in tags if name.strip()))
    if len(names) > MAX_TAGS:
        raise RequestError(f"a chat has at most {MAX_TAGS} tags")
    connection.execute("DELETE FROM tag WHERE chat = ?", (number,))
    connection.executemany(
        "INSERT INTO tag (chat, name) VALUES (?, ?)",
        [(number, _checked("tag", name, MAX_NAME)) for name in names],
    )


def _row(connection: sqlite3.Connection, owner: str, id: str) -> sqlite3.Row:
    row: sqlite3.Row | None = connection.execute(
        "SELECT * FROM chat WHERE owner = ? AND id = ? AND deleted IS NULL", (owner, id)
    ).fetchone()
    if row is None:
        raise ChatNotFoundError(f"there is no chat '{id:.40}'")
    return row


def _message_row(connection: sqlite3.Connection, chat: int, id: str) -> sqlite3.Row:
    row: sqlite3.Row | None = connection.execute(
        "SELECT number, id FROM message WHERE chat = ? AND id = ?", (chat, id)
    ).fetchone()
    if row is None:
        raise ChatNotFoundError(f"the chat has no message '{id:.40}'")
    return row


def _file_row(connection: sqlite3.Connection, owner: str, id: str) -> sqlite3.Row:
    row: sqlite3.Row | None = connection.execute(
        "SELECT number, id, name, type FROM file WHERE owner = ? AND id = ?", (owner, id)
    ).fetchone()
    if row is None:
        raise ChatNotFoundError(f"there is no file '{id:.70}'; upload it first")
    return row


def _head(connection: sqlite3.Connection, row: sqlite3.Row) -> ChatHead:
    tags = connection.execute("SELECT name FROM tag WHERE chat = ? ORDER BY name", (row["number"],))
    title = row["title"]
    if not title:
        first = connection.execute(
            "SELECT substr(content, 1, 500) FROM message"
            " WHERE chat = ? AND role = 'user' ORDER BY number LIMIT 1",
            (row["number"],),
        ).fetchone()
        title = " ".join(first[0].split())[:MAX_SHOWN_TITLE] if first else ""
    return ChatHead(
        id=row["id"],
        title=title,
        titled=bool(row["title"]),
        created=row["created"],
        updated=row["updated"],
        pinned=bool(row["pinned"]),
        folder=row["folder"],
        tags=[name for (name,) in tags],
        model=row["model"],
    )


def _chat(connection: sqlite3.Connection, row: sqlite3.Row) -> StoredChat:
    return StoredChat(
        **msgspec.structs.asdict(_head(connection, row)),
        settings=msgspec.json.decode(row["settings"]),
        leaf=row["leaf"],
        messages=_messages(connection, "message.chat = ?", (row["number"],)),
    )


def _messages(connection: sqlite3.Connection, condition: str, values: Iterable[Any]) -> list[StoredMessage]:
    files: dict[int, list[StoredFile]] = {}
    for row in connection.execute(
        "SELECT message, file.id, message_file.name, type, length(data) AS size FROM message_file"
        " JOIN message ON message.number = message JOIN file ON file.number = file"
        f" WHERE {condition} ORDER BY message, place",
        tuple(values),
    ):
        files.setdefault(row["message"], []).append(
            StoredFile(row["id"], row["name"], row["type"], row["size"])
        )
    rows = connection.execute(f"SELECT * FROM message WHERE {condition} ORDER BY number", tuple(values))
    return [
        StoredMessage(
            id=row["id"],
            parent=row["parent"],
            role=row["role"],
            content=row["content"],
            thinking=row["thinking"],
            calls=msgspec.json.decode(row["calls"], type=list[StoredCall]),
            tool_name=row["tool_name"],
            tool_call_id=row["tool_call_id"],
            files=files.get(row["number"], []),
            model=row["model"],
            stats=None if row["stats"] is None else msgspec.json.decode(row["stats"]),
            error=row["error"],
            state=row["state"],
            created=row["created"],
        )
        for row in rows
    ]
