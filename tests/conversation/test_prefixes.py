"""Conversations whose prompts keep changing early are found, among the prompts of one client only."""

from __future__ import annotations

import pytest

from puna.chat.templates.messages import Message
from puna.conversation.prefixes import _INPUTS, _OF_CLIENT, _PROMPTS, PrefixWatch
from puna.protocol import BrokenPrefix


class Characters:
    """A tokenizer with a token for each character."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


TOKENIZER = Characters()
LONG = "instructions " * 100


def conversation(turns: int, task: str = "Fix it.") -> list[Message]:
    messages = [Message(role="user", content=task)]
    for number in range(turns):
        messages.append(Message(role="assistant", content=f"{task}: I look at {number}."))
        messages.append(Message(role="tool", content=f"{task}: result {number}"))
    return messages


class Watched:
    """A watch, and a client's requests to it."""

    def __init__(self) -> None:
        self.watch = PrefixWatch(TOKENIZER)  # type: ignore[arg-type]

    def send(self, system: str, messages: list[Message], client: str = "a") -> BrokenPrefix | None:
        text = system + "".join(f"\n{message.role}: {message.content}" for message in messages)
        return self.watch.note(client, messages, TOKENIZER.encode(text))


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_a_checksum_at_the_beginning_is_reported_from_the_second_time_on(watched: Watched) -> None:
    found = [watched.send(f"v=1; cch={7 * turn:05};\n{LONG}", conversation(turn)) for turn in range(4)]
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert (found[2].token, found[2].text[:10]) == (len("v=1; cch=000"), "cch=00014;")
    assert str(found[2]).startswith("prefix broken at token 12 by 'cch=00014;\\ninstructions ")
    assert len(found[2].text) <= 43
    assert found[2].lost > len(LONG)
    assert found[3] is not None


def test_growing_conversations_are_not_reported(watched: Watched) -> None:
    assert not any(watched.send(LONG, conversation(turn)) for turn in range(20))


def test_a_single_break_is_not_reported(watched: Watched) -> None:
    systems = [LONG, LONG, f"now {LONG}", f"now {LONG}", f"now {LONG}"]
    assert not any(watched.send(system, conversation(turn)) for turn, system in enumerate(systems))


def test_a_change_in_the_second_half_is_not_reported(watched: Watched) -> None:
    for turn in range(5):
        messages = [*conversation(turn), Message(role="tool", content=f"{turn} left " * 20)]
        assert watched.send(LONG, messages) is None


def test_several_conversations_of_a_client_do_not_break_each_other(watched: Watched) -> None:
    for turn in range(6):
        for task in ("Fix it.", "Test it.", "Explain it."):
            assert watched.send(f"{task}{LONG}", conversation(turn, task)) is None


def test_clients_are_not_compared(watched: Watched) -> None:
    for turn in range(6):
        for client in "abc":
            assert watched.send(f"{client}{LONG}", conversation(turn), client) is None


def test_an_image_that_changes_is_named(watched: Watched) -> None:
    text = TOKENIZER.encode(LONG)
    found = [
        watched.watch.note("a", conversation(turn), [1, 2, (3, turn), (3, turn), *text]) for turn in range(3)
    ]
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert (found[2].token, found[2].text) == (2, "an image")


def test_memory_is_bounded(watched: Watched) -> None:
    for number in range(2 * _OF_CLIENT):
        watched.send(LONG, conversation(1, f"task {number}"))
    assert len(watched.watch._clients["a"].prompts) == _OF_CLIENT
    for number in range(2 * _PROMPTS):
        watched.send(LONG, conversation(1), f"client {number}")
    assert len(watched.watch._clients) <= _PROMPTS
    watched.watch.note("huge", conversation(1), range(_INPUTS + 1))
    assert not watched.watch._clients["huge"].prompts
