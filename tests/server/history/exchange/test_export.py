"""Exports of ours: read again they are the same chats."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.server.history.chats import StoredCall, StoredChat, StoredFile, StoredMessage
from puna.server.history.exchange import ours
from puna.server.history.exchange.markdown import chat_markdown, fenced
from puna.server.history.exchange.reading import read_chats
from puna.server.history.exchange.trees import ReadChat

CONTENTS = {"0" * 64: b"", "1" * 64: b"fox", "2" * 64: bytes(range(256))}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
times = st.floats(1.0, 4e9)
json_objects = st.dictionaries(
    texts, st.one_of(st.integers(-(2**60), 2**60), texts, st.booleans()), max_size=3
)


@st.composite
def stored_messages(draw: st.DrawFn) -> list[StoredMessage]:
    """Draw trees of messages in the order in which they were made."""
    found: list[StoredMessage] = []
    for number in range(draw(st.integers(1, 6))):
        parents = st.sampled_from([None, *(each.id for each in found)])
        files = draw(st.lists(st.sampled_from(sorted(CONTENTS)), max_size=2))
        found.append(
            StoredMessage(
                id=f"{number:016x}",
                parent=draw(parents),
                role=draw(st.sampled_from(["system", "user", "assistant", "tool"])),
                content=draw(texts),
                thinking=draw(texts),
                calls=[StoredCall(draw(texts), draw(texts), "{}")] * draw(st.integers(0, 2)),
                tool_name=draw(texts),
                tool_call_id=draw(texts),
                files=[StoredFile(id, draw(texts), "text/plain", len(CONTENTS[id])) for id in files],
                model=draw(texts),
                stats=draw(st.none() | json_objects),
                error=draw(st.none() | texts),
                state=draw(st.sampled_from(["done", "running", "stopped", "failed"])),
                created=draw(times),
            )
        )
    return found


@st.composite
def stored_chats(draw: st.DrawFn) -> StoredChat:
    messages = draw(stored_messages())
    return StoredChat(
        id="c" * 16,
        title=draw(texts),
        titled=True,
        created=draw(times),
        updated=draw(times),
        pinned=draw(st.booleans()),
        folder=draw(texts),
        tags=draw(st.lists(texts, max_size=3)),
        model=draw(texts),
        settings=draw(json_objects),
        leaf=draw(st.sampled_from([None, *(each.id for each in messages)])),
        messages=messages,
    )


def exported(*chats: StoredChat) -> bytes:
    parts = []
    for chat in chats:
        files = [ours.file_part(id, CONTENTS[id], first=not n) for n, id in enumerate(ours.file_ids(chat))]
        parts.append(ours.chat_begin(chat) + b"".join(files) + ours.CHAT_END)
    return ours.BEGIN + ours.BETWEEN.join(parts) + ours.END


def tree(chat: StoredChat | ReadChat) -> dict[str, Any]:
    """Return all of a chat, with parents by their places instead of ids."""
    places = {each.id: at for at, each in enumerate(chat.messages) if isinstance(each, StoredMessage)}

    def place(id: str | int | None) -> int | None:
        return places[id] if isinstance(id, str) else id

    messages = []
    for each in chat.messages:
        fields = msgspec.structs.asdict(each)
        fields.pop("id", None)
        fields["parent"] = place(each.parent)
        fields["state"] = "stopped" if each.state == "running" else each.state
        fields["files"] = [
            (file.name, file.type, (chat.contents if isinstance(chat, ReadChat) else CONTENTS)[file.id])
            for file in each.files
        ]
        messages.append(fields)
    names = ("title", "created", "updated", "pinned", "folder", "tags", "model", "settings")
    return {name: getattr(chat, name) for name in names} | {"leaf": place(chat.leaf), "messages": messages}


@pytest.mark.slow
@given(st.lists(stored_chats(), max_size=3))
def test_exported_chats_are_read_as_the_same_trees(chats: list[StoredChat]) -> None:
    assert [tree(each) for each in read_chats(exported(*chats)) if isinstance(each, ReadChat)] == [
        tree(each) for each in chats
    ]


@given(stored_chats())
def test_export_names_each_file_once_in_base64(chat: StoredChat) -> None:
    [found] = json.loads(exported(chat))["chats"]
    named = {file.id for message in chat.messages for file in message.files}
    assert {id: base64.b64decode(text) for id, text in found["files"].items()} == {
        id: CONTENTS[id] for id in named
    }


def test_title_made_from_the_first_question_is_no_title_when_read() -> None:
    message = StoredMessage(id="m", parent=None, role="user", content="Why?", created=1.0)
    chat = StoredChat(
        id="c", title="Why?", titled=False, created=1.0, updated=1.0, pinned=False, folder="", tags=[],
        model="", settings={}, leaf="m", messages=[message],
    )  # fmt: skip
    [found] = read_chats(exported(chat))
    assert isinstance(found, ReadChat)
    assert found.title == ""


def test_markdown_has_the_shown_branch_alone() -> None:
    def said(id: str, parent: str | None, role: str, content: str, **fields: Any) -> StoredMessage:
        return StoredMessage(id=id, parent=parent, role=role, content=content, created=1.0, **fields)

    chat = StoredChat(
        id="c", title="Foxes", titled=True, created=1.0, updated=1.0, pinned=False, folder="", tags=[],
        model="demo", settings={}, leaf="c",
        messages=[
            said("a", None, "user", "Why?", files=[StoredFile("0" * 64, "fox.png", "image/png", 0)]),
            said("b", "a", "assistant", "Hidden."),
            said("c", "a", "assistant", "Because.", thinking="Hm.\n\nYes.", model="demo",
                 calls=[StoredCall("1", "clock", "{}")]),
        ],
    )  # fmt: skip
    assert chat_markdown(chat) == (
        "# Foxes\n\n## You\n\n*fox.png*\n\nWhy?\n\n## Assistant (demo)\n\n> Hm.\n>\n> Yes.\n\nBecause.\n\n"
        "```json\nclock({})\n```\n"
    )


def test_fence_is_longer_than_those_in_the_code() -> None:
    assert fenced("a ```` b").startswith("`````\n")
    assert fenced("a").startswith("```\n")


def test_file_without_its_content_is_named_in_its_message() -> None:
    file = StoredFile("0" * 64, "fox.png", "image/png", 1)
    message = StoredMessage(id="m", parent=None, role="user", content="Why?", files=[file], created=1.0)
    chat = StoredChat(
        id="c", title="t", titled=True, created=1.0, updated=1.0, pinned=False, folder="", tags=[],
        model="", settings={}, leaf="m", messages=[message],
    )  # fmt: skip
    [found] = read_chats(ours.BEGIN + ours.chat_begin(chat) + ours.CHAT_END + ours.END)
    assert isinstance(found, ReadChat)
    assert (found.messages[0].content, found.messages[0].files) == (
        "Why?\n\n[fox.png: not in the export]",
        [],
    )
