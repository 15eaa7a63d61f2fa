"""What of a very long chat is looked at."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from puna.chat.templates.messages import Message
from puna.conversation.fit import newest, size

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
def test_the_newest_messages_stay_and_the_missing_bytes_are_counted(
    messages: list[Message], most: int
) -> None:
    kept, dropped = newest(messages, most)
    assert dropped == sum(map(size, messages)) - sum(map(size, kept))
    assert kept[-1] is messages[-1]
    assert [m for m in kept if m.role == "system"] == [m for m in messages if m.role == "system"]
    others = [m for m in messages if m.role != "system"]
    kept_others = [m for m in kept if m.role != "system"]
    assert kept_others == others[len(others) - len(kept_others) :]
    if sum(map(size, kept)) > most:  # then nothing but the last one could go
        assert all(m.role == "system" for m in kept[:-1])


@given(MESSAGES)
def test_a_chat_within_the_bytes_is_left_alone(messages: list[Message]) -> None:
    assert newest(messages, sum(map(size, messages))) == (messages, 0)


def test_size_is_in_bytes_and_includes_calls() -> None:
    assert size(Message(content="aé", thinking="b")) == 4
    assert size(Message(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}])) > 30
