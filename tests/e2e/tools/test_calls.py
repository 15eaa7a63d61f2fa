"""Tools through the clients of every API: calls and their results."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.e2e.servers import Server
from tests.e2e.tools.calling import (
    ANSWER,
    CALLED,
    FIRST,
    FUNCTION,
    GREEDY,
    ONE,
    TOOLS,
    chat_calls,
    native,
    native_calls,
    ordered,
    user,
)

pytestmark = pytest.mark.e2e


# --- Ollama's API ---


def test_ollamas_client_receives_complete_calls(server: Server) -> None:
    answer = native(server)
    assert (answer.message.thinking, answer.message.content) == ("Let me look.\n", "I look.")
    assert native_calls(answer.message) == CALLED
    assert answer.done_reason == "stop"
    parts = list(server.client.chat("scripted", user(), tools=TOOLS, options=GREEDY, stream=True))
    assert [one for part in parts for one in native_calls(part.message)] == CALLED
    assert "".join(part.message.content or "" for part in parts) == "I look."
    assert "".join(part.message.thinking or "" for part in parts) == "Let me look.\n"
    body = {"model": "scripted", "messages": user(), "tools": TOOLS, "stream": False, "options": GREEDY}
    raw = server.http.post("/api/chat", json=body).json()["message"]["tool_calls"]
    assert [one["function"]["index"] for one in raw] == [0, 1]
    assert len({one["id"] for one in raw}) == 2
    assert all(one["id"].startswith("call_") for one in raw)


def test_ollamas_client_can_send_results_back(server: Server) -> None:
    conversation: list[Any] = user()
    answer = server.client.chat("scripted", conversation, tools=TOOLS, options=GREEDY)
    conversation += [
        answer.message,
        {"role": "tool", "content": f"sunny {ANSWER}", "tool_name": "get_weather"},
    ]
    assert (
        server.client.chat("scripted", conversation, tools=TOOLS, options=GREEDY).message.content
        == "It is sunny."
    )


# --- OpenAI's chats ---


def test_openais_chat_has_calls_with_arguments_as_text(chat: Any) -> None:
    (choice,) = chat().choices
    assert chat_calls(choice.message) == CALLED
    assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
    assert choice.message.reasoning == choice.message.reasoning_content == "Let me look.\n"
    assert {one.type for one in choice.message.tool_calls} == {"function"}
    assert len({one.id for one in choice.message.tool_calls}) == 2


def test_first_delta_of_a_call_has_its_name_and_later_ones_the_arguments(chat: Any) -> None:
    found: dict[int, list[Any]] = {}
    reasons, text, thinking = [], "", ""
    for chunk in chat(stream=True):
        (choice,) = chunk.choices
        reasons.append(choice.finish_reason)
        text += choice.delta.content or ""
        thinking += getattr(choice.delta, "reasoning_content", "")
        for delta in choice.delta.tool_calls or []:
            found.setdefault(delta.index, []).append(delta)
    assert (text, thinking) == ("I look.", "Let me look.\n")
    assert list(found) == [0, 1]
    assert reasons[-1] == "tool_calls"
    assert set(reasons[:-1]) == {None}
    for (name, arguments), (first, *rest) in zip(CALLED, found.values(), strict=True):
        assert (first.type, first.function.name) == ("function", name)
        assert first.id
        assert [(one.id, one.type, one.function.name) for one in rest] == [(None, None, None)] * len(rest)
        assert ordered("".join(one.function.arguments for one in (first, *rest))) == arguments


def test_openais_chat_accepts_results(chat: Any) -> None:
    conversation: list[Any] = user()
    (choice,) = chat(conversation).choices
    conversation.append(choice.message)
    conversation += [
        {"role": "tool", "tool_call_id": one.id, "content": "sunny"} for one in choice.message.tool_calls
    ]
    conversation[-1]["content"] += ANSWER
    (choice,) = chat(conversation).choices
    assert (choice.message.content, choice.finish_reason) == ("It is sunny.", "stop")
    assert choice.message.tool_calls is None


def test_each_sample_has_its_own_calls(chat: Any) -> None:
    answer = chat(n=2)
    assert [chat_calls(choice.message) for choice in answer.choices] == [CALLED, CALLED]
    ids = [one.id for choice in answer.choices for one in choice.message.tool_calls]
    assert len(set(ids)) == 4


def test_legacy_functions_work_like_tools(chat: Any) -> None:
    (choice,) = chat(ONE, tools=openai.omit, functions=[FUNCTION]).choices
    assert choice.finish_reason == "function_call"
    assert choice.message.tool_calls is None
    assert ordered(choice.message.function_call.arguments) == ordered(FIRST)
    conversation = [*user(), choice.message, {"role": "function", "name": "get_weather", "content": ANSWER}]
    (choice,) = chat(conversation, tools=openai.omit, functions=[FUNCTION]).choices
    assert choice.message.content == "It is sunny."


# --- OpenAI's responses ---


def items_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


def item_calls(response: Any) -> list[tuple[str, str]]:
    return [(item.name, ordered(item.arguments)) for item in items_of(response)]


def test_responses_have_calls_as_items_and_continue_with_their_outputs(responses: Any) -> None:
    answer = responses("weather?")
    assert [item.type for item in answer.output] == [
        "reasoning", "message", "function_call", "function_call",
    ]  # fmt: skip
    assert (answer.output_text, answer.status) == ("I look.", "completed")
    assert item_calls(answer) == CALLED
    outputs = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in items_of(answer)
    ]
    outputs[-1]["output"] = ANSWER
    done = responses(outputs, previous_response_id=answer.id)
    assert done.output_text == "It is sunny."
    by_hand = [*user(), *[item.model_dump() for item in answer.output], *outputs]
    assert responses(by_hand).output_text == "It is sunny."


def test_responses_stream_call_arguments(responses: Any) -> None:
    with responses("weather?", stream=True) as stream:
        events = list(stream)
        assert item_calls(stream.get_final_response()) == CALLED
    assert item_calls(events[-1].response) == CALLED
    deltas: dict[str, str] = {}
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            deltas[event.item_id] = deltas.get(event.item_id, "") + event.delta
    done = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert [(event.item_id, event.arguments) for event in done] == list(deltas.items())
    assert [ordered(text) for text in deltas.values()] == [arguments for _, arguments in CALLED]


# --- Anthropic's messages ---


def block_calls(message: Any) -> list[tuple[str, str]]:
    return [(one.name, ordered(one.input)) for one in message.content if one.type == "tool_use"]


def test_anthropics_messages_have_calls_as_blocks_and_accept_results(messages: Any) -> None:
    answer = messages(user(), thinking={"type": "adaptive"})
    assert [one.type for one in answer.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert (answer.content[0].thinking, answer.content[1].text) == ("Let me look.\n", "I look.")
    assert block_calls(answer) == CALLED
    assert answer.stop_reason == "tool_use"
    results = [
        {"type": "tool_result", "tool_use_id": one.id, "content": f"sunny {ANSWER if last else ''}"}
        for last, one in enumerate(one for one in answer.content if one.type == "tool_use")
    ]
    conversation = [
        *user(),
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": results},
    ]
    done = messages(conversation)
    assert [one.text for one in done.content] == ["It is sunny."]
    assert done.stop_reason == "end_turn"


def test_anthropics_messages_stream_call_arguments(messages: Any) -> None:
    with messages(user(), stream=True) as stream:
        events = list(stream)
        final = stream.get_final_message()
    assert [one.type for one in final.content] == ["text", "tool_use", "tool_use"]
    assert block_calls(final) == CALLED
    assert final.stop_reason == "tool_use"
    begun = [event.content_block for event in events if event.type == "content_block_start"]
    assert [one.input for one in begun if one.type == "tool_use"] == [{}, {}]
    parts = [
        event for event in events
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta"
    ]  # fmt: skip
    assert {part.index for part in parts} == {1, 2}
