"""The additions of a model's author to a conversation, and missing capabilities."""

from __future__ import annotations

import pytest

from puna.chat.templates.author import Author
from puna.chat.templates.choose import Abilities, check_capabilities
from puna.chat.templates.messages import Chat, Message
from puna.errors import RequestError

EXAMPLE = {"role": "assistant", "content": "example"}
AUTHOR = Author("m", lambda: Abilities(("completion",)), system="own", opening=[EXAMPLE])


def opened(*roles: str, system: str = "", opening: bool = True) -> list[str]:
    chat = Chat(messages=[Message(role=role, content=role) for role in roles])
    return [message.content for message in AUTHOR.opened(chat, system=system, opening=opening).messages]


def test_the_authors_system_text_and_examples_come_first() -> None:
    assert opened("user") == ["own", "example", "user"]
    assert opened("user", system="request's") == ["request's", "example", "user"]


def test_only_a_leading_system_message_replaces_the_authors() -> None:
    assert opened("system", "user") == ["example", "system", "user"]
    assert opened("user", "system", "user") == ["own", "example", "user", "system", "user"]


def test_examples_are_only_in_the_first_turn_of_a_context() -> None:
    assert opened("user", opening=False) == ["own", "user"]


def test_each_missing_capability_is_named_on_a_line() -> None:
    with pytest.raises(RequestError) as caught:
        check_capabilities("m", ["completion"], ["tools", "completion", "insert"])
    assert str(caught.value) == '"m" does not support tools\n"m" does not support insert'


@pytest.mark.parametrize(("asked", "think"), [(None, True), (True, True), (False, False), ("low", "low")])
def test_models_that_can_think_do_unless_told_otherwise(asked: bool | str | None, think: bool | str) -> None:
    assert Author("m", lambda: Abilities(("thinking",))).think(asked) == think


def test_high_is_the_top_level_of_harmony() -> None:
    for family, level in (("harmony", "high"), ("qwen", "max")):
        author = Author("m", lambda family=family: Abilities(("thinking",), family))  # type: ignore[misc]
        assert author.think("max") == level
        assert author.think("low") == "low"


def test_abilities_are_found_once_for_all_questions_about_them() -> None:
    found: list[Abilities] = []

    def find() -> Abilities:
        found.append(Abilities(("thinking",), "harmony", takes_documents=True, takes_values=True))
        return found[-1]

    author = Author("m", find)
    assert author.capabilities == ("thinking",)
    assert author.answer_family() == "harmony"
    assert author.takes_documents()
    assert author.takes_values()
    assert author.think(None) is True
    assert len(found) == 1
