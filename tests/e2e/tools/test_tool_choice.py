"""Text that only looks like a call, and calls that must or must not be made."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.servers import Server
from tests.e2e.tools.calling import (
    ANSWER,
    BREAK,
    CALLED,
    FIRST,
    FUNCTION,
    GREEDY,
    ONE,
    SCHEMA,
    chat_calls,
    native,
    native_calls,
    ordered,
    user,
)

pytestmark = pytest.mark.e2e


def test_incomplete_call_is_returned_as_text(
    server: Server, chat: Any, responses: Any, messages: Any
) -> None:
    """For calls that break off by themselves; see `test_call_cut_by_a_limit_is_never_made` for others."""
    answer = native(server, BREAK)
    visible_text = (answer.message.content or "") + "".join(
        name + text for name, text in native_calls(answer.message)
    )
    assert "get_weather" in visible_text
    assert "Par" in visible_text
    assert not answer.message.tool_calls
    (choice,) = chat(BREAK).choices
    assert "Par" in str(choice.message.content) + str(choice.message.tool_calls)
    response = responses(BREAK)
    assert "Par" in str(response.output)
    message = messages(user(BREAK))
    assert "Par" in str(message.content)
    assert message.stop_reason == "end_turn"


def test_call_cut_by_a_limit_is_never_made(server: Server, chat: Any, messages: Any) -> None:
    whole = native(server, ONE)
    assert native_calls(whole.message) == CALLED[:1]
    counts = range(1, whole.eval_count or 0, 5)
    answers = [native(server, ONE, options={"num_predict": limit}) for limit in counts]
    found = [native_calls(answer.message) for answer in answers]
    without = found.count([])
    assert found == [[]] * without + [CALLED[:1]] * (
        len(found) - without
    )  # only the closing tag may be missing
    assert without > 3
    assert {answer.done_reason for answer in answers} == {"length"}
    limit = counts[without - 1]
    (choice,) = chat(ONE, max_tokens=limit).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    message = messages(user(ONE), max_tokens=limit)
    assert message.stop_reason == "max_tokens"
    assert [one.type for one in message.content] == ["text"]


def test_a_call_without_tools_is_text_without_markup(server: Server) -> None:
    answer = server.client.chat("scripted", user(ONE), options=GREEDY)
    assert answer.message.content == f"get_weather{ordered(FIRST)}"
    assert not answer.message.tool_calls


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_required_call_is_made(chat: Any, choice: Any) -> None:
    """The model would otherwise answer with text."""
    city = SCHEMA | {"properties": {"city": {"enum": ["Lima", "Rome"]}}, "additionalProperties": False}
    tools = [{"type": "function", "function": FUNCTION | {"parameters": city}}]
    extra = {"tool_choice": choice, "parallel_tool_calls": False, "reasoning_effort": "none", "tools": tools}
    (found,) = chat(ANSWER, **extra, max_tokens=400).choices
    ((name, arguments),) = chat_calls(found.message)
    assert name == "get_weather"
    assert json.loads(arguments)["city"] in ("Lima", "Rome")
    assert found.finish_reason == "tool_calls"


def test_request_without_parallel_calls_gets_the_first_call(
    server: Server, chat: Any, responses: Any, messages: Any
) -> None:
    """No grammar enforces it: the model makes two calls, and its answer ends after the first."""
    assert chat_calls(chat().choices[0].message) == CALLED
    (found,) = chat(parallel_tool_calls=False).choices
    assert (chat_calls(found.message), found.finish_reason) == (CALLED[:1], "tool_calls")
    several = chat(parallel_tool_calls=False, n=2)
    assert [chat_calls(choice.message) for choice in several.choices] == [CALLED[:1]] * 2
    whole, first = (chat(**extra).usage.completion_tokens for extra in ({}, {"parallel_tool_calls": False}))
    assert first < whole
    response = responses("weather?", parallel_tool_calls=False)
    assert [item.name for item in response.output if item.type == "function_call"] == ["get_weather"]
    message = messages(user(), tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [part.name for part in message.content if part.type == "tool_use"] == ["get_weather"]
    assert message.stop_reason == "tool_use"


def test_tool_choice_none_prevents_calls(chat: Any) -> None:
    (found,) = chat(ONE, tool_choice="none").choices
    assert not found.message.tool_calls
    assert found.finish_reason == "stop"
