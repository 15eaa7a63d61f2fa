"""Conversations of agents in a neutral form, with their text as the template of the tests writes it.

The text is written by plain Python, independently of the server: it says which tokens of a prompt are new.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Final

#: A template that writes every message where it is, and leaves out thinking.
TEMPLATE: Final = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool.function | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class Tool:
    name: str
    description: str
    parameters: dict[str, Any]
    strict: bool | None = None


@dataclass(frozen=True)
class Call:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Message:
    """A message; `parts` are texts that clients send apart, `images` follow the text."""

    role: str
    parts: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    answers: str = ""  # the id of the call that a message of role tool answers
    images: tuple[bytes, ...] = ()
    thinking: str = ""

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class Conversation:
    """The content of one request. `billing` is the line before the system prompt that no model should see."""

    system: list[str] = field(default_factory=list)
    tools: list[Tool] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    billing: str = ""

    def copied(self) -> Conversation:
        return copy.deepcopy(self)

    def add(self, role: str, *parts: str, **more: Any) -> None:
        self.messages.append(Message(role, parts, **more))


def written(conversation: Conversation, *, apart: bool = False) -> str:
    """Return the best prompt: nothing that changes by itself, and nothing out of its place.

    With `apart`, each part of a message is a message, as in chats of Ollama and OpenAI.
    """
    tools = sorted(conversation.tools, key=lambda tool: tool.name)
    system = [_turn("system", "\n\n".join(conversation.system))] if conversation.system else []
    return _text(tools, [*system, *_turns(conversation.messages, apart=apart)])


def moved(conversation: Conversation, *, apart: bool = False) -> str:
    """Return the prompt of a server without rules: billing kept, all system messages in front."""
    later = [message for message in conversation.messages if message.role == "system"]
    others = [message for message in conversation.messages if message.role != "system"]
    system = [conversation.billing, *conversation.system, *(message.text for message in later)]
    front = [_turn("system", "\n\n".join(text for text in system if text))]
    return _text(conversation.tools, [*front, *_turns(others, apart=apart)])


def _text(tools: list[Tool], turns: list[str]) -> str:
    described = "".join(f"{json.dumps(_function(tool), ensure_ascii=False)}\n" for tool in tools)
    before = f"<|im_start|>tools\n{described}<|im_end|>\n" if tools else ""
    return f"{before}{''.join(turns)}<|im_start|>assistant\n"


def _function(tool: Tool) -> dict[str, Any]:
    made: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return made if tool.strict is None else {**made, "strict": tool.strict}


def _turns(messages: list[Message], *, apart: bool) -> list[str]:
    turns = []
    for message in messages:
        images = "".join(f"[image {hashlib.sha256(image).hexdigest()[:8]}]" for image in message.images)
        texts = message.parts if apart and message.parts and not images else [message.text + images]
        turns += [_turn(message.role, text, message.calls) for text in texts]
    return turns


def _turn(role: str, text: str, calls: tuple[Call, ...] = ()) -> str:
    made = "".join(
        f"<call>{json.dumps({'name': call.name, 'arguments': call.arguments}, ensure_ascii=False)}</call>"
        for call in calls
    )
    return f"<|im_start|>{role}\n{text}{made}<|im_end|>\n"
