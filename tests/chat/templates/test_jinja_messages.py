"""Messages in the wording that their template requires."""

from __future__ import annotations

from typing import Any

import pytest

from puna.chat.templates.jinja_chat import Wording
from puna.chat.templates.messages import Message

CALLS = [{"id": id, "function": {"name": name, "arguments": {}}} for id, name in (("1", "f"), ("2", "g"))]


def result(content: str, id: str = "") -> Message:
    return Message(role="tool", content=content, tool_call_id=id)


def chat(template: str, *results: Message) -> list[dict[str, Any]]:
    asked = Message(role="user", content="a")
    return Wording.of(template).chat([asked, Message(role="assistant", tool_calls=CALLS), *results, asked])


@pytest.mark.parametrize("ids", [("1", "2"), ("", ""), ("2", "1"), ("x", "2")])
def test_a_template_for_single_calls_gets_each_with_its_result(ids: tuple[str, str]) -> None:
    found = chat("{{ message.tool_calls[0] }}", *(result(f"of {id}", id) for id in ids))
    assert [message["role"] for message in found] == ["user", *["assistant", "tool"] * 2, "user"]
    assert [message["tool_calls"][0]["id"] for message in found if "tool_calls" in message] == ["1", "2"]
    contents = [message["content"] for message in found if message["role"] == "tool"]
    assert contents == (
        ["of ", "of "] if not ids[0] else [f"of {ids[0]}", "of 2"] if ids[0] == "x" else ["of 1", "of 2"]
    )


def test_results_without_a_call_are_kept() -> None:
    found = chat("{{ m['tool_calls'][0] }}", *(result(str(n), "9") for n in range(3)))
    assert [message["content"] for message in found if message["role"] == "tool"] == ["0", "1", "2"]


def test_results_move_into_the_message_with_the_calls_if_the_template_reads_them_there() -> None:
    found = chat("{{ message.tool_responses }}", result("two", "2"), result("one", "1"), result("more", "9"))
    assert [message["role"] for message in found] == ["user", "assistant", "user"]
    assert [(one["name"], one["response"]) for one in found[1]["tool_responses"]] == [
        ("f", "one"), ("g", "two"), ("unknown", "more"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("template", "content"),
    [
        ("{% if m['content'] is none %}", None),
        ("{% if m.content is none or m.content == '' %}", ""),
        ("x", ""),
    ],
)
def test_a_message_with_calls_only_has_the_templates_empty_content(
    template: str, content: str | None
) -> None:
    assert chat(template)[1]["content"] == content


def test_the_time_per_call_does_not_grow_with_their_number() -> None:
    calls = [{"id": str(n), "function": {"name": "f", "arguments": {}}} for n in range(16_000)]
    messages = [Message(role="assistant", tool_calls=calls), *(result("x", str(n)) for n in range(16_000))]
    assert len(Wording(one_call=True).chat(messages)) == 32_000
    (whole,) = Wording(results_within=True).chat(messages)
    assert len(whole["tool_responses"]) == 16_000
