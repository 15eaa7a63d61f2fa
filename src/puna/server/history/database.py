"""The history file: SQLite in WAL mode, its schema by version, and the one thread that uses it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from puna.errors import HistoryClosedError, HistoryError

T = TypeVar("T")

#: Schema changes in order. A file at version n has the first n; a released entry is never edited.
#: Of a long message the first 200,000 characters are searched.
MIGRATIONS: Final = (
    """
    CREATE TABLE chat (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        owner TEXT NOT NULL,
        title TEXT NOT NULL,
        folder TEXT NOT NULL,
        pinned INTEGER NOT NULL,
        model TEXT NOT NULL,
        settings TEXT NOT NULL,
        leaf TEXT,
        created REAL NOT NULL,
        updated REAL NOT NULL,
        deleted REAL
    );
    CREATE INDEX chat_order ON chat (owner, pinned DESC, updated DESC, number DESC);
    CREATE INDEX chat_deleted ON chat (deleted) WHERE deleted IS NOT NULL;
    CREATE TABLE tag (
        chat INTEGER NOT NULL REFERENCES chat ON DELETE CASCADE,
        name TEXT NOT NULL,
        PRIMARY KEY (chat, name)
    ) WITHOUT ROWID;
    CREATE TABLE message (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        chat INTEGER NOT NULL REFERENCES chat ON DELETE CASCADE,
        parent TEXT,
        role TEXT NOT NULL,
        content TEXT NOT NULL,
        thinking TEXT NOT NULL,
        calls TEXT NOT NULL,
        tool_name TEXT NOT NULL,
        tool_call_id TEXT NOT NULL,
        model TEXT NOT NULL,
        stats TEXT,
        error TEXT,
        state TEXT NOT NULL,
        created REAL NOT NULL
    );
    CREATE INDEX message_chat ON message (chat);
    CREATE TABLE file (
        number INTEGER PRIMARY KEY,
        owner TEXT NOT NULL,
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        type TEXT NOT NULL,
        data BLOB NOT NULL,
        created REAL NOT NULL,
        UNIQUE (owner, id)
    );
    CREATE TABLE message_file (
        message INTEGER NOT NULL REFERENCES message ON DELETE CASCADE,
        place INTEGER NOT NULL,
        file INTEGER NOT NULL REFERENCES file,
        name TEXT NOT NULL,
        PRIMARY KEY (message, place)
    ) WITHOUT ROWID;
    CREATE INDEX message_file_file ON message_file (file);
    CREATE TABLE preset (
        owner TEXT NOT NULL,
        name TEXT NOT NULL,
        settings TEXT NOT NULL,
        PRIMARY KEY (owner, name)
    ) WITHOUT ROWID;
    CREATE VIRTUAL TABLE message_text USING fts5 (
        content, content = 'message', content_rowid = 'number', tokenize = 'trigram'
    );
    CREATE TRIGGER message_added AFTER INSERT ON message WHEN new.state <> 'running' BEGIN
        INSERT INTO message_text (rowid, content) VALUES (new.number, substr(new.content, 1, 200000));
    END;
    CREATE TRIGGER message_finished AFTER UPDATE OF state ON message
    WHEN old.state = 'running' AND new.state <> 'running' BEGIN
        INSERT INTO message_text (rowid, content) VALUES (new.number, substr(new.content, 1, 200000));
    END;
    CREATE TRIGGER message_removed AFTER DELETE ON message WHEN old.state <> 'running' BEGIN
        INSERT INTO message_text (message_text, rowid, content)
        VALUES ('delete', old.number, substr(old.content, 1, 200000));
    END;
    """,
    """
    ALTER TABLE chat ADD COLUMN source TEXT;
    CREATE INDEX chat_source ON chat (owner, source) WHERE source IS NOT NULL;
    """,
)

#: How long a statement waits for another process that holds the file.
_PATIENCE_S: Final = 10.0
_PAGE_BYTES: Final = 4096

_log = logging.getLogger(__name__)


class HistoryDatabase:
    """The history file at `path`, of at most `max_bytes`. All work runs on one thread, in order.

    Other processes may use the file at the same time. It is opened by the first call, so a server whose page
    nobody opens never creates it.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="history")

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `work` in a transaction of its own, which an error rolls back.

        The transaction ends even if the caller is cancelled. Raises HistoryError, after `close`
        HistoryClosedError, and what `work` raises.
        """
        return await asyncio.shield(asyncio.wrap_future(self._submit(self._transaction, work)))

    async def erase(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Like `run`, and leave nothing of what `work` deletes in the file, its index or its log."""
        result = await self.run(work)
        await asyncio.shield(asyncio.wrap_future(self._submit(self._scrub)))
        return result

    def _submit(self, work: Callable[..., T], *given: Any) -> Future[T]:
        try:
            return self._thread.submit(work, *given)
        except RuntimeError:
            raise HistoryClosedError("the server is shutting down") from None

    def close(self) -> None:
        """Finish queued work and close the file."""
        self._thread.submit(self._close)
        self._thread.shutdown(wait=True)

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        with self._named_errors():
            if self._connection is None:
                self._connection = self._open()
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
            return result

    def _scrub(self) -> None:
        if (connection := self._connection) is not None:
            with self._named_errors():
                # Deleted words stay in old segments of the index until these are merged.
                connection.execute("INSERT INTO message_text (message_text) VALUES ('optimize')")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite gives the files beside it the same permissions: chats are nobody else's business.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(
            self._path, timeout=_PATIENCE_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA secure_delete = ON")
            connection.execute(f"PRAGMA max_page_count = {max(self._max_bytes // _PAGE_BYTES, 64)}")
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            connection.rollback()
            raise HistoryError(
                f"{self._path}: the history was written by a newer version of Puna; update Puna, or set "
                "PUNA_HISTORY to another file"
            )
        for number, statements in enumerate(MIGRATIONS[version:], version + 1):
            for statement in _statements(statements):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
        connection.commit()

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and of the file system into HistoryError with the file's name."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            raise HistoryError(f"{self._path}: {self._advice(code, error)}") from error
        except OSError as error:
            raise HistoryError(f"{self._path}: cannot open the history: {error.strerror or error}") from error

    def _advice(self, code: int, error: sqlite3.DatabaseError) -> str:
        if code == sqlite3.SQLITE_FULL:
            return (
                f"the disk is full, or the history has reached {self._max_bytes >> 20} MB (PUNA_HISTORY_MB); "
                "delete chats or raise the limit"
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return "the history is damaged; move the file away to begin a new one"
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return "another process holds the history; try again"
        return f"the history cannot be used: {error}"


def _statements(script: str) -> Iterator[str]:
    """Split a script into statements; `executescript` would commit between them."""
    begun = ""
    for line in script.splitlines(keepends=True):
        begun += line
        if sqlite3.complete_statement(begun):
            yield begun
            begun = ""
