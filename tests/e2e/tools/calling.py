"""A tool-calling model, the requests for it, and readers of the calls in its answers."""

from __future__ import annotations

import json
from typing import Any

import ollama

from tests.e2e.servers import Server
from tests.scripted import trigger

TEMPLATE = """\
{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call a tool as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\
{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

GREEDY = {"temperature": 0}
FIRST = {"city": "Zürich", "days": 2}
SECOND = {"days": 1.0, "city": "Lima"}


def call(arguments: dict[str, Any], name: str = "get_weather") -> str:
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


BROKEN = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Par'
SCRIPTS = [
    f"<think>\nLet me look.\n</think>\n\nI look.\n{call(FIRST)}\n{call(SECOND)}",
    "It is sunny.",
    BROKEN,
    call(FIRST),
]
#: Triggers that select an answer; without one, it is the first.
ANSWER, BREAK, ONE = trigger(1), trigger(2), trigger(3)

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "number"}},
    "required": ["city"],
}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": SCHEMA}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
FLAT: list[Any] = [{"type": "function", "strict": False, **FUNCTION}]
ANTHROPIC: list[Any] = [{"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}]


def user(content: str = "weather?") -> Any:
    return [{"role": "user", "content": content}]


def ordered(arguments: Any) -> str:
    """Return arguments in a form that preserves the order of their keys and the kinds of their numbers."""
    return json.dumps(json.loads(arguments) if isinstance(arguments, str) else arguments, ensure_ascii=False)


CALLED = [("get_weather", ordered(FIRST)), ("get_weather", ordered(SECOND))]


def native(server: Server, content: str = "weather?", **extra: Any) -> ollama.ChatResponse:
    options = {"temperature": 0, **extra.pop("options", {})}
    return server.client.chat("scripted", user(content), tools=TOOLS, options=options, **extra)


def native_calls(message: ollama.Message) -> list[tuple[str, str]]:
    return [(one.function.name, ordered(one.function.arguments)) for one in message.tool_calls or []]


def chat_calls(message: Any) -> list[tuple[str, str]]:
    return [(one.function.name, ordered(one.function.arguments)) for one in message.tool_calls or []]
