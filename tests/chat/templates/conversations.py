"""Chats shared by the tests of templates, in the native API's shape."""

from __future__ import annotations

from typing import Any

USER = {"role": "user", "content": "Hello, how are you?"}
ANSWER = {"role": "assistant", "content": 'I\'m fine — "thanks" <b>for</b> asking & you?'}
AGAIN = {"role": "user", "content": "Tell me a joke.\n\n  Indented éè 🎉"}
SYSTEM = {"role": "system", "content": "You are terse."}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {
            "type": "function",
            "id": "abcdef123",
            "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 2}},
        }
    ],
}
RESULT = {
    "role": "tool",
    "name": "get_weather",
    "tool_call_id": "abcdef123",
    "content": '{"sky": "blue"}',
}
THOUGHT = {
    "role": "assistant",
    "content": "It is 4.",
    "reasoning_content": "Two and two.",
    "thinking": "Two and two.",
}

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "required": ["city"],
                "properties": {
                    "city": {"type": "string", "description": "the city <name>"},
                    "days": {"type": "integer", "description": "how many", "enum": [1, 2]},
                },
            },
        },
    }
]

CHATS: dict[str, list[dict[str, Any]]] = {
    "single": [USER],
    "turns": [USER, ANSWER, AGAIN],
    "system": [SYSTEM, USER, ANSWER, AGAIN],
    "call": [USER, CALL, RESULT],
    "system-call": [SYSTEM, USER, CALL, RESULT, ANSWER, AGAIN],
    "thought": [USER, THOUGHT, AGAIN],
    "two-users": [USER, AGAIN],
    "starts-with-assistant": [ANSWER, USER],
    "unknown-role": [USER, {"role": "narrator", "content": "Meanwhile"}],
    "empty": [],
}
