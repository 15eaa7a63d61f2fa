"""Exports of other programs, read as chats of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from puna.errors import RequestError
from puna.server.history.exchange.reading import MAX_CHATS, MAX_MARKS, SkippedChat, read_chats
from puna.server.history.exchange.trees import ReadChat, digest, parents_first, time_s
from tests.server.history.exchange.foreign import (
    CHATGPT,
    OPEN_WEBUI,
    conversation,
    file_of,
    node,
    webui_chat,
)


def read(*chats: dict[str, Any]) -> ReadChat:
    """Return the only chat of an export."""
    [found] = read_chats(file_of(*chats))
    assert isinstance(found, ReadChat), found
    return found


def test_chatgpt_conversation_keeps_branches_thoughts_calls_and_times() -> None:
    chat = read(CHATGPT)
    assert (chat.title, chat.created, chat.updated) == ("Foxes", 1_700_000_000.0, 1_700_000_100.0)
    assert [(each.parent, each.role, each.content) for each in chat.messages] == [
        (None, "user", "Why are foxes red?"),
        (0, "assistant", "Pigment. "),
        (0, "assistant", "Because."),
        (2, "assistant", ""),
        (3, "tool", "2"),
        (4, "user", "[image: not in the export]\n\nThis?\n\n[notes.pdf: not in the export]"),
    ]
    answer, call, result = chat.messages[1], chat.messages[3], chat.messages[4]
    assert (answer.thinking, answer.model, answer.created) == (
        "Fur\nIt is pigment.",
        "gpt-x",
        1_700_000_000.5,
    )
    assert chat.leaf == 1
    assert [(each.name, json.loads(each.arguments)) for each in call.calls] == [
        ("python", {"input": "1 + 1"})
    ]
    assert result.tool_name == "python"


def test_open_webui_chat_keeps_branches_thoughts_calls_files_and_errors() -> None:
    chat = read(OPEN_WEBUI)
    assert (chat.title, chat.created, chat.updated) == ("Owls", 1_700_000_000.0, 1_700_000_200.0)
    assert (chat.pinned, chat.tags, chat.settings) == (True, ["birds"], {"system": "Be brief."})
    question, answer, failed = chat.messages
    assert [(each.name, each.type, chat.contents[each.id]) for each in question.files] == [
        ("image", "image/png", b"\x89PNG\r"),
        ("owls.txt", "text/plain", b"Owls."),
    ]
    assert question.content == "When?\n\n[gone.pdf: not in the export]"
    assert (answer.thinking, answer.model) == ("They & mice\nsleep", "llama3.2")
    assert [(each.name, each.arguments) for each in answer.calls] == [("clock", '{"zone": "UTC"}')]
    assert answer.content == "```json\nnoon\n```\nAt night."
    assert (failed.parent, failed.error, failed.state) == (0, "no memory", "failed")
    assert chat.leaf == 2


def test_old_open_webui_chat_has_nothing_around_it() -> None:
    assert read(OPEN_WEBUI["chat"]).title == "Owls"


def test_single_conversation_may_stand_without_a_list() -> None:
    [chat] = read_chats(json.dumps(CHATGPT).encode())
    assert isinstance(chat, ReadChat)


def test_circle_and_unknown_parents_lose_no_other_message() -> None:
    chat = read(
        conversation(
            node("a", "b", "user", "circle"),
            node("b", "a", "user", "circle"),
            node("c", "nowhere", "user", "root"),
            node("d", "c", "user", "leaf"),
        )
    )
    assert [(each.parent, each.content) for each in chat.messages] == [(None, "root"), (0, "leaf")]


def test_unreadable_chats_are_skipped_with_their_title_and_reason() -> None:
    found = [
        *read_chats(
            file_of(
                CHATGPT,
                {"title": "Broken", "mapping": {"a": 1}},
                {"title": "Other", "turns": []},
                conversation(node("root", None), title="Empty"),
                webui_chat([], title="None"),
            )
        )
    ]
    assert isinstance(found[0], ReadChat)
    skipped = [each for each in found[1:] if isinstance(each, SkippedChat)]
    assert [each.title for each in skipped] == ["Broken", "Other", "Empty", "None"]
    assert "Expected `object`" in skipped[0].reason
    assert skipped[1].reason == "it is not a chat of a known format"
    assert [each.reason for each in skipped[2:]] == ["it has no messages"] * 2


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "cannot be read as JSON"),
        (b"[{]", "cannot be read as JSON"),
        (b"PK\x03\x04...", "ZIP archive"),
        (b"[" * 500, "nested too deeply, more than 100 levels"),
        (b"[" + b"1," * MAX_MARKS + b"1]", f"more than {MAX_MARKS:,} values"),
        (b"[" + b"{}," * MAX_CHATS + b"{}]", f"more than {MAX_CHATS:,} chats"),
        (b'[{"a": 1}, 2]', "no chat of a known format"),
        (b'{"format": "other", "chats": []}', "of another format"),
        (b'{"format": "puna-chats", "version": 2, "chats": []}', "newer version"),
        (b" " * ((64 << 20) + 1), "larger than 64 MB"),
    ],
)
def test_file_that_cannot_be_read_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        [*read_chats(data)]


def test_digest_tells_chats_apart_and_not_the_order_of_fields() -> None:
    reordered = dict(reversed(CHATGPT.items()))
    assert digest(read(CHATGPT)) == digest(read(reordered))
    assert digest(read(CHATGPT)) != digest(read(CHATGPT | {"title": "Vixens"}))


def test_times_in_any_unit_are_seconds() -> None:
    assert {time_s(1_700_000_000 * unit) for unit in (1, 10**3, 10**6, 10**9)} == {1_700_000_000.0}
    assert [time_s(each) for each in (None, "x", True, -1, 1e300, float("nan"), float("inf"))] == [0.0] * 7


def test_parents_come_first_and_else_the_order_stays() -> None:
    assert parents_first({"b": "a", "a": None, "c": "a", "d": None}) == ["a", "b", "c", "d"]
    assert parents_first({"a": None, "c": "a", "b": None}) == ["a", "c", "b"]
