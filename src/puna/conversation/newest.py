"""What of a very long chat is worth rendering and tokenising."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from puna.engine.requests import text_size
from puna.prompt.fit import remaining
from puna.prompt.messages import Message


def newest(messages: Sequence[Message], most_bytes: int) -> tuple[list[Message], int]:
    """The system messages, and the newest others as long as all have at most `most_bytes` of text together.

    Also returns how many bytes of text were left out. The last message stays, however long.
    """
    sizes = [size(message) for message in messages]
    left_out = sum(sizes) - most_bytes
    start = dropped = 0
    while dropped < left_out and start < len(messages) - 1:
        if messages[start].role != "system":
            dropped += sizes[start]
        start += 1
    return remaining(messages, start), dropped


def size(message: Message) -> int:
    """Bytes of text in a message."""
    calls = len(msgspec.json.encode(message.tool_calls)) if message.tool_calls else 0
    return text_size(message.content) + text_size(message.thinking) + calls
