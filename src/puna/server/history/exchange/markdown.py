"""The shown branch of a chat as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from puna.server.history.chats import StoredChat, StoredMessage

_NAMES: Final = {"system": "System", "user": "You", "assistant": "Assistant", "tool": "Tool"}
_BACKTICKS: Final = re.compile("`+")


def chat_markdown(chat: StoredChat) -> str:
    """Return the messages from the first one to the chat's leaf, each below a heading with its author."""
    parts = [f"# {chat.title or 'Chat'}"]
    for message in path_to(chat.messages, chat.leaf):
        name = _NAMES.get(message.role, message.role)
        if message.role == "tool" and message.tool_name:
            name = f"Tool {message.tool_name}"
        parts.append(f"## {name}" + (f" ({message.model})" if message.model else ""))
        if message.thinking:
            parts.append(_quoted(message.thinking))
        parts += [f"*{file.name}*" for file in message.files]
        if message.content:
            parts.append(message.content)
        parts += [fenced(f"{call.name}({call.arguments})", "json") for call in message.calls]
        if message.error:
            parts.append(f"*{message.error}*")
    return "\n\n".join(parts) + "\n"


def path_to(messages: Sequence[StoredMessage], leaf: str | None) -> list[StoredMessage]:
    """Return the messages from the first one to `leaf`."""
    by_id = {message.id: message for message in messages}
    path = []
    while leaf is not None and (message := by_id.pop(leaf, None)) is not None:
        path.append(message)
        leaf = message.parent
    return path[::-1]


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.strip().split("\n"))


def fenced(text: str, language: str = "") -> str:
    """Return a block of code whose fence is longer than any in the text."""
    fence = "`" * (1 + max(2, *(len(found[0]) for found in _BACKTICKS.finditer(text)), 0))
    return f"{fence}{language}\n{text}\n{fence}"
