"""Fitting a chat into the context drops as little as possible."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from puna.chat.templates.messages import Message, remaining
from puna.conversation.fit import Fitted, fit_chat, newest, size
from puna.errors import TemplateError


def message(role: str, content: str) -> Message:
    return Message(role=role, content=content)


def render(messages: list[Message]) -> str:
    return "".join(f"[{m.role}]{m.content}" for m in messages) + "[assistant]"


def words(text: str) -> int:
    return len(text.replace("[", " [").split())


def fitted(chat: list[Message], render: Callable[[list[Message]], str], limit: int) -> Fitted:
    return fit_chat(chat, lambda start: render(remaining(chat, start)), words, limit)


CHAT = [
    message("system", "be brief"),
    message("user", "one"),
    message("assistant", "two"),
    message("system", "now in French"),
    message("user", "three"),
]


def test_a_chat_that_fits_is_left_alone() -> None:
    found = fitted(CHAT, render, 100)
    assert found.messages == CHAT
    assert found.prompt == render(CHAT)
    assert (found.dropped, found.count) == (0, words(render(CHAT)))


def test_oldest_messages_are_dropped_first_and_system_messages_stay() -> None:
    found = fitted(CHAT, render, 7)
    assert found.messages == [CHAT[0], CHAT[3], CHAT[4]]
    assert found.dropped == 2
    found = fitted(CHAT, render, 8)
    assert found.messages == [CHAT[0], CHAT[2], CHAT[3], CHAT[4]]


def test_the_last_message_stays_even_if_too_long() -> None:
    found = fitted(CHAT, render, 1)
    assert found.messages == [CHAT[0], CHAT[3], CHAT[4]]
    assert found.count > 1


def test_cuts_that_the_template_refuses_are_skipped() -> None:
    def strict(messages: list[Message]) -> str:
        first = next((m for m in messages if m.role != "system"), None)
        if first is not None and first.role != "user":
            raise TemplateError("template error: a chat begins with the user")
        return render(messages)

    chat = [message("user" if i % 2 == 0 else "assistant", f"w{i}") for i in range(9)]
    for limit in range(1, words(render(chat)) + 1):
        found = fitted(chat, strict, limit)
        assert found.messages[0].role == "user"
        assert found.count <= limit or found.messages == [chat[-1]]
    only_answer = [message("user", "a b c"), message("assistant", "d e f")]
    assert fitted(only_answer, strict, 2).messages == only_answer  # nothing else can be rendered


_CHATS = st.lists(
    st.builds(message, st.sampled_from(["system", "user", "assistant", "tool"]), st.text("ab ", max_size=9)),
    min_size=1,
    max_size=8,
)


@given(_CHATS, st.integers(0, 40))
def test_as_many_of_the_newest_messages_as_fit_are_kept(chat: list[Message], limit: int) -> None:
    found = fitted(chat, render, limit)
    candidates = [
        [m for m in chat[:start] if m.role == "system"] + chat[start:] for start in range(len(chat))
    ]
    expected = next((c for c in candidates if words(render(c)) <= limit), candidates[-1])
    assert found.messages == expected
    assert found.prompt == render(expected)
    assert found.dropped == len(chat) - len(expected)


@pytest.mark.parametrize("limit", [2, 500, 5_000, 9_900])
def test_message_sizes_guide_the_cut_to_few_renderings(limit: int) -> None:
    chat = [message(("user", "assistant")[i % 2], f"word{'s and words' * (i % 7)} " * 5) for i in range(300)]
    tries: list[int] = []

    def counted(start: int) -> str:
        tries.append(start)
        return render(remaining(chat, start))

    assert fit_chat(chat, counted, words, limit).count <= max(limit, 60)
    assert len(tries) <= 6
    assert sum(len(chat) - start for start in tries) < 4 * len(chat)


MESSAGES = st.lists(
    st.builds(
        Message,
        role=st.sampled_from(["system", "user", "assistant"]),
        content=st.text("aé", max_size=8),
        thinking=st.text("b", max_size=3),
    ),
    min_size=1,
    max_size=12,
)


@given(MESSAGES, st.integers(0, 60))
def test_newest_messages_stay_and_dropped_bytes_are_counted(messages: list[Message], most: int) -> None:
    kept, dropped = newest(messages, most)
    assert dropped == sum(map(size, messages)) - sum(map(size, kept))
    assert kept[-1] is messages[-1]
    assert [m for m in kept if m.role == "system"] == [m for m in messages if m.role == "system"]
    others = [m for m in messages if m.role != "system"]
    kept_others = [m for m in kept if m.role != "system"]
    assert kept_others == others[len(others) - len(kept_others) :]
    if sum(map(size, kept)) > most:  # then everything that may be dropped is
        assert all(m.role == "system" for m in kept[:-1])


@given(MESSAGES)
def test_chat_within_the_byte_limit_is_left_alone(messages: list[Message]) -> None:
    assert newest(messages, sum(map(size, messages))) == (messages, 0)


def test_size_is_in_bytes_and_includes_calls() -> None:
    assert size(Message(content="aé", thinking="b")) == 4
    assert size(Message(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}])) > 30
