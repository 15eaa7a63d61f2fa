"""Fitting a chat into the context drops as little as possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from puna.errors import TemplateError
from puna.prompt.fit import fit_chat
from puna.prompt.messages import Message


def message(role: str, content: str) -> Message:
    return Message(role=role, content=content)


def render(messages: list[Message]) -> str:
    return "".join(f"[{m.role}]{m.content}" for m in messages) + "[assistant]"


def words(text: str) -> int:
    return len(text.replace("[", " [").split())


CHAT = [
    message("system", "be brief"),
    message("user", "one"),
    message("assistant", "two"),
    message("system", "now in French"),
    message("user", "three"),
]


def test_a_chat_that_fits_is_left_alone() -> None:
    fitted = fit_chat(CHAT, render, words, 100)
    assert fitted.messages == CHAT
    assert fitted.prompt == render(CHAT)
    assert (fitted.dropped, fitted.count) == (0, words(render(CHAT)))


def test_the_oldest_go_first_and_system_messages_stay_in_front() -> None:
    fitted = fit_chat(CHAT, render, words, 7)
    assert fitted.messages == [CHAT[0], CHAT[3], CHAT[4]]
    assert fitted.dropped == 2
    fitted = fit_chat(CHAT, render, words, 8)
    assert fitted.messages == [CHAT[0], CHAT[2], CHAT[3], CHAT[4]]


def test_the_last_message_stays_even_if_too_long() -> None:
    fitted = fit_chat(CHAT, render, words, 1)
    assert fitted.messages == [CHAT[0], CHAT[3], CHAT[4]]
    assert fitted.count > 1


def test_cuts_the_template_refuses_are_passed_over() -> None:
    def strict(messages: list[Message]) -> str:
        first = next((m for m in messages if m.role != "system"), None)
        if first is not None and first.role != "user":
            raise TemplateError("template error: a chat begins with the user")
        return render(messages)

    chat = [message("user" if i % 2 == 0 else "assistant", f"w{i}") for i in range(9)]
    for limit in range(1, words(render(chat)) + 1):
        fitted = fit_chat(chat, strict, words, limit)
        assert fitted.messages[0].role == "user"
        assert fitted.count <= limit or fitted.messages == [chat[-1]]
    only_answer = [message("user", "a b c"), message("assistant", "d e f")]
    assert fit_chat(only_answer, strict, words, 2).messages == only_answer  # nothing else can be rendered


_CHATS = st.lists(
    st.builds(message, st.sampled_from(["system", "user", "assistant", "tool"]), st.text("ab ", max_size=9)),
    min_size=1,
    max_size=8,
)


@given(_CHATS, st.integers(0, 40))
def test_no_longer_chat_would_have_fitted(chat: list[Message], limit: int) -> None:
    fitted = fit_chat(chat, render, words, limit)
    candidates = [
        [m for m in chat[:start] if m.role == "system"] + chat[start:] for start in range(len(chat))
    ]
    expected = next((c for c in candidates if words(render(c)) <= limit), candidates[-1])
    assert fitted.messages == expected
    assert fitted.prompt == render(expected)
    assert fitted.dropped == len(chat) - len(expected)
