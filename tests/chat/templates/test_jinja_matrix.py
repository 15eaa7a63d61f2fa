"""Many conversations in Ollama's shape render to the same prompts as in transformers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from puna.chat.templates.jinja_chat import JinjaFormat
from puna.chat.templates.messages import SpecialTokens, as_messages
from tests.chat.templates.conversations import AGAIN, ANSWER, SYSTEM, TOOLS, USER
from tests.chat.templates.test_jinja import SPECIAL, outcome, reference, templates

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

NESTED = {"place": {"city": "Zürich", "at": [8.5, 47]}, "days": 2, "now": True, "note": 'a "b" <c>\n'}


def turn(*calls: tuple[str, dict[str, Any]], content: str = "", thinking: str = "") -> list[dict[str, Any]]:
    """Return a message with calls, and the result of each call."""
    made = [
        {"id": f"abcdefgh{number}", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]
    said = {"role": "assistant", "content": content, "thinking": thinking, "tool_calls": made}
    results = [
        {"role": "tool", "content": f'{{"ok": {number}}}', "tool_name": name, "tool_call_id": call["id"]}
        for number, ((name, _), call) in enumerate(zip(calls, made, strict=True))
    ]
    return [said, *results]


ONE = turn(("get_weather", {"city": "Paris"}))
TWO = turn(("get_weather", {"city": "Paris"}), ("get_weather", NESTED))
SAID = turn(("get_weather", {}), content="I look.", thinking="Hm.")
THOUGHT = {"role": "assistant", "content": "It is 4.", "thinking": "Two and two.\nSo."}

CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [USER, *ONE],
    "two": [USER, *TWO],
    "said": [USER, *SAID],
    "one after the other": [USER, *ONE, *TWO],
    "answered": [SYSTEM, USER, *TWO, ANSWER, AGAIN],
    "thought and called": [SYSTEM, USER, *SAID, ANSWER, AGAIN, *ONE],
    "thought": [SYSTEM, USER, THOUGHT, AGAIN],
    "thought twice": [USER, THOUGHT, AGAIN, THOUGHT, USER],
    "empty texts": [USER, {"role": "assistant", "content": ""}, AGAIN],
}
MORE_TOOLS = [*TOOLS, {"type": "function", "function": {"name": "now", "description": "the time",
               "parameters": {"type": "object", "properties": {}}}}]  # fmt: skip
DOCUMENTS = [{"title": "Foxes", "text": "They hunt at night."}, {"title": "Owls", "text": "So do they <b>."}]
THINKS: list[tuple[Any, dict[str, Any]]] = [
    (None, {}),
    (False, {**dict.fromkeys(("enable_thinking", "thinking", "reasoning"), False), "thinking_budget": 0}),
    ("high", {"enable_thinking": True, "thinking": True, "reasoning": True, "reasoning_effort": "high"}),
]


def test_every_chat_is_rendered_as_in_transformers(test_data: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[test]'")
    compared = 0
    for path in templates(test_data):
        text = path.read_text()
        form = JinjaFormat(text, SpecialTokens(SPECIAL))
        kinds = itertools.product(CHATS.items(), (None, TOOLS, MORE_TOOLS), ([], DOCUMENTS), THINKS)
        for (name, chat), tools, documents, (think, values) in kinds:
            where = f"{path.name}, {name}, {len(tools or ())} tools, {len(documents)} documents, {think}"
            given = form.wording.chat(as_messages(chat))
            values = {"add_generation_prompt": True, "documents": documents or None, **values}
            expected = outcome(reference, text, given, tools, values)
            if isinstance(expected, Exception):
                continue  # see test_jinja_forms.py for these
            found = form.render(chat, tools=tools, documents=documents, think=think)
            last = chat[-1]["content"].strip()
            if last in expected or not last:  # otherwise contents are given in parts
                assert found == expected, where
                compared += 1
    assert compared > 4000
