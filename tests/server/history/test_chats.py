"""Chats in the history: trees of messages, search, undo, and what each owner sees."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.errors import ChatNotFoundError, HistoryClosedError, HistoryError, RequestError
from puna.server.history import chats
from puna.server.history.chats import MessageDraft
from puna.server.history.database import MIGRATIONS, HistoryDatabase

T = TypeVar("T")
OWNER, OTHER = "a" * 64, "b" * 64


class History:
    """A history used synchronously."""

    def __init__(self, path: Path, max_bytes: int = 1 << 30) -> None:
        self.database = HistoryDatabase(path, max_bytes)
        self.path = path

    def __call__(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        return asyncio.run(self.database.run(lambda connection: function(connection, *arguments, **named)))

    def erase(self, now: float) -> None:
        asyncio.run(self.database.erase(lambda connection: chats.purge(connection, now)))

    def said(self, chat: str, *contents: str, owner: str = OWNER, parent: str | None = None) -> list[str]:
        """Add messages, each answering the one before; returns their ids."""
        ids = []
        for content in contents:
            draft = MessageDraft(parent=parent, role="user", content=content)
            parent = self(chats.add_message, owner, chat, draft).id
            ids.append(parent)
        return ids


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    made = History(tmp_path / "home" / "history.db")
    yield made
    made.database.close()


def titles(page: chats.ChatPage) -> list[str]:
    return [head.title for head in page.chats]


def test_chat_returns_the_messages_of_all_branches(history: History) -> None:
    chat = history(chats.add_chat, OWNER, title="Foxes", settings={"model": "demo"}).id
    first, answer = history.said(chat, "Why red?", "Because.")
    edited = history.said(chat, "Why brown?")[0]
    found = history(chats.get_chat, OWNER, chat)
    assert [(one.id, one.parent, one.content) for one in found.messages] == [
        (first, None, "Why red?"),
        (answer, first, "Because."),
        (edited, None, "Why brown?"),
    ]
    assert (found.leaf, found.settings) == (edited, {"model": "demo"})
    assert history(chats.change_chat, OWNER, chat, {"leaf": answer}).id == chat
    assert history(chats.get_chat, OWNER, chat).leaf == answer


def test_a_closed_history_says_that_the_server_is_shutting_down(tmp_path: Path) -> None:
    database = HistoryDatabase(tmp_path / "history.db", 1 << 20)
    database.close()
    with pytest.raises(HistoryClosedError, match="shutting down") as raised:
        asyncio.run(database.run(lambda connection: connection.execute("SELECT 1")))
    assert raised.value.status == 503


def test_chats_of_another_owner_do_not_exist(history: History) -> None:
    chat = history(chats.add_chat, OWNER, title="mine").id
    [message] = history.said(chat, "secret fox")
    file = history(chats.add_file, OWNER, "a.txt", "text/plain", b"hidden").id
    other = history(chats.add_chat, OTHER).id
    assert titles(history(chats.list_chats, OTHER, query="fox")) == []
    calls: list[tuple[Any, ...]] = [
        (chats.get_chat, OTHER, chat),
        (chats.change_chat, OTHER, chat, {"title": "x"}),
        (chats.delete_chat, OTHER, chat),
        (chats.restore_chat, OTHER, chat),
        (chats.get_file, OTHER, file),
        (chats.add_message, OTHER, chat, MessageDraft(parent=None, role="user")),
        (chats.add_message, OTHER, other, MessageDraft(parent=message, role="user")),
        (chats.add_message, OTHER, other, MessageDraft(parent=None, role="user", files=[(file, "")])),
    ]
    for function, *arguments in calls:
        with pytest.raises(ChatNotFoundError):
            history(function, *arguments)
    assert history(chats.get_chat, OWNER, chat).title == "mine"


def test_pages_list_every_chat_once_with_pinned_ones_first(history: History) -> None:
    for number in range(7):
        history(chats.add_chat, OWNER, title=str(number), pinned=number == 2, created=1000.0 + number)
    found, cursor = [], ""
    while True:
        page = history(chats.list_chats, OWNER, cursor=cursor, limit=3)
        found += titles(page)
        if page.cursor is None:
            break
        cursor = page.cursor
    assert found == ["2", "6", "5", "4", "3", "1", "0"]
    with pytest.raises(RequestError, match="cursor"):
        history(chats.list_chats, OWNER, cursor="nonsense")


def test_folders_and_tags_select_chats_and_are_counted(history: History) -> None:
    history(chats.add_chat, OWNER, title="a", folder="work", tags=["x", "y", "x", " "])
    history(chats.add_chat, OWNER, title="b", folder="work", tags=["y"])
    history(chats.add_chat, OTHER, title="c", folder="theirs", tags=["z"])
    page = history(chats.list_chats, OWNER, folder="work", tag="x")
    assert titles(page) == ["a"]
    assert [(one.name, one.count) for one in page.folders] == [("work", 2)]
    assert [(one.name, one.count) for one in page.tags] == [("x", 1), ("y", 2)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("quick", ["Animals"]),
        ("QUICK brown", ["Animals"]),
        ("rown fo", ["Animals"]),
        ("quick 東京", []),
        ("東京", ["Travel"]),  # shorter than the index's runs of three
        ("100%", ["Travel"]),
        ("1_0%", []),
        ('say "hi" AND', ["Travel"]),
        ("anim", ["Animals"]),  # in a title
        ("later", ["Travel"]),
    ],
)
def test_search_finds_words_anywhere_and_takes_nothing_as_syntax(
    history: History, query: str, expected: list[str]
) -> None:
    animals = history(chats.add_chat, OWNER, title="Animals").id
    history.said(animals, "The quick brown fox")
    travel = history(chats.add_chat, OWNER, title="Travel").id
    history.said(travel, '東京 is 100% fun; say "hi" AND smile', "x" * 300 + " later")
    assert titles(history(chats.list_chats, OWNER, query=query)) == expected


def test_snippet_marks_every_hit(history: History) -> None:
    chat = history(chats.add_chat, OWNER, title="t").id
    history.said(chat, "w " * 100 + "a fox met a Fox")
    [head] = history(chats.list_chats, OWNER, query="fox").chats
    assert head.snippet is not None
    assert [part.text for part in head.snippet if part.hit] == ["fox", "Fox"]
    assert "".join(part.text for part in head.snippet).startswith("…")


def test_answer_is_searched_once_it_is_finished(history: History) -> None:
    chat = history(chats.add_chat, OWNER, title="t").id
    draft = MessageDraft(parent=None, role="assistant", state="running")
    answer = history(chats.add_message, OWNER, chat, draft).id
    update = {"thinking": "", "calls": [], "stats": None}
    history(chats.update_answer, answer, content="half a zebra", state="running", **update)
    assert titles(history(chats.list_chats, OWNER, query="zebra")) == []
    history(chats.update_answer, answer, content="a zebra", state="done", **update)
    assert titles(history(chats.list_chats, OWNER, query="zebra")) == ["t"]


def test_deleted_chat_is_restored_within_a_minute_and_then_gone_from_the_files(history: History) -> None:
    chat = history(chats.add_chat, OWNER, title="needle-title").id
    file = history(chats.add_file, OWNER, "a", "text/plain", b"needle-file").id
    draft = MessageDraft(parent=None, role="user", content="needle-content", files=[(file, "named")])
    history(chats.add_message, OWNER, chat, draft)
    kept = history(chats.add_chat, OWNER, title="kept").id
    history.said(kept, "something else")

    history(chats.delete_chat, OWNER, chat)
    assert titles(history(chats.list_chats, OWNER)) == ["kept"]
    assert titles(history(chats.list_chats, OWNER, query="needle")) == []
    history(chats.restore_chat, OWNER, chat)
    assert history(chats.get_chat, OWNER, chat).messages[0].files[0].name == "named"

    history(chats.delete_chat, OWNER, chat)
    assert history(chats.needs_purge, time.time()) is False
    later = time.time() + chats.UNUSED_FILE_S + 1
    assert history(chats.needs_purge, later) is True
    history.erase(later)
    with pytest.raises(ChatNotFoundError):
        history(chats.restore_chat, OWNER, chat)
    assert titles(history(chats.list_chats, OWNER, query="something")) == ["kept"]
    history(
        lambda connection: connection.execute(
            "INSERT INTO message_text (message_text) VALUES ('integrity-check')"
        )
    )
    for path in history.path.parent.iterdir():
        assert b"needle" not in path.read_bytes(), path.name


def test_files_without_a_message_are_dropped_after_an_hour(history: History) -> None:
    chat = history(chats.add_chat, OWNER).id
    used = history(chats.add_file, OWNER, "a", "image/png", b"used").id
    history(chats.add_message, OWNER, chat, MessageDraft(parent=None, role="user", files=[(used, "")]))
    unused = history(chats.add_file, OWNER, "b", "image/png", b"unused").id
    history.erase(time.time() + chats.UNUSED_FILE_S + 1)
    assert history(chats.get_file, OWNER, used)[1] == b"used"
    with pytest.raises(ChatNotFoundError):
        history(chats.get_file, OWNER, unused)


def test_interrupted_answers_are_marked_as_stopped(history: History) -> None:
    chat = history(chats.add_chat, OWNER).id
    draft = MessageDraft(parent=None, role="assistant", content="half", state="running")
    history(chats.add_message, OWNER, chat, draft)
    history(chats.end_interrupted)
    [message] = history(chats.get_chat, OWNER, chat).messages
    assert (message.state, message.content) == ("stopped", "half")
    assert message.error is not None


def test_title_is_set_only_where_there_is_none(history: History) -> None:
    chat = history(chats.add_chat, OWNER).id
    assert history(chats.set_title, OWNER, chat, "made")
    assert not history(chats.set_title, OWNER, chat, "again")
    assert history(chats.get_chat, OWNER, chat).title == "made"


def test_presets_are_kept_by_owner(history: History) -> None:
    history(chats.put_preset, OWNER, "short", {"options": {"num_predict": 9}})
    history(chats.put_preset, OWNER, "short", {"options": {"num_predict": 8}})
    assert history(chats.presets, OWNER) == {"short": {"options": {"num_predict": 8}}}
    assert history(chats.presets, OTHER) == {}
    with pytest.raises(ChatNotFoundError):
        history(chats.delete_preset, OTHER, "short")
    history(chats.delete_preset, OWNER, "short")
    assert history(chats.presets, OWNER) == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"title": "x" * (chats.MAX_TITLE + 1)}, "title: more than"),
        ({"folder": "x" * (chats.MAX_NAME + 1)}, "folder: more than"),
        ({"tags": [str(number) for number in range(chats.MAX_TAGS + 1)]}, "at most 32 tags"),
        ({"settings": {"system": "x" * chats.MAX_SETTINGS_BYTES}}, "settings: more than 64 KB"),
        ({"title": "\ud800"}, "surrogate"),
    ],
)
def test_what_is_too_long_is_refused_and_changes_nothing(
    history: History, changes: dict[str, Any], message: str
) -> None:
    chat = history(chats.add_chat, OWNER, title="before", tags=["kept"]).id
    with pytest.raises(RequestError, match=message):
        history(chats.change_chat, OWNER, chat, {"pinned": True} | changes)
    head = history(chats.change_chat, OWNER, chat, {})
    assert (head.title, head.pinned, head.tags) == ("before", False, ["kept"])


def test_full_history_says_so_and_keeps_what_it_has(tmp_path: Path) -> None:
    history = History(tmp_path / "history.db", max_bytes=64 * 4096)
    chat = history(chats.add_chat, OWNER, title="kept").id
    with pytest.raises(HistoryError, match=r"PUNA_HISTORY_MB"):
        history.said(chat, "x" * 1_000_000)
    assert titles(history(chats.list_chats, OWNER)) == ["kept"]
    history.database.close()


def test_history_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    with pytest.raises(HistoryError, match="newer version"):
        History(path)(chats.list_chats, OWNER)


def test_damaged_history_is_named(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(b"no database at all" * 1000)
    with pytest.raises(HistoryError, match=r"history\.db: the history is damaged"):
        History(path)(chats.list_chats, OWNER)


def test_only_the_user_may_read_the_files(history: History) -> None:
    history(chats.add_chat, OWNER)
    assert history.path.parent.is_dir()
    for path in history.path.parent.iterdir():
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@given(st.lists(st.integers(0, 30), max_size=25), st.text(max_size=20))
def test_any_tree_of_messages_comes_back_as_it_was_added(parents: list[int], text: str) -> None:
    with TemporaryDirectory() as folder:
        history = History(Path(folder) / "history.db")
        chat = history(chats.add_chat, OWNER).id
        added: list[chats.StoredMessage] = []
        for number, parent in enumerate(parents):
            under = added[parent % len(added)].id if added and parent else None
            draft = MessageDraft(parent=under, role="user", content=f"{number} {text}")
            added.append(history(chats.add_message, OWNER, chat, draft))
        assert history(chats.get_chat, OWNER, chat).messages == added
        history.database.close()
