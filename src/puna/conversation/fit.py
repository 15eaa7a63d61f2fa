"""Shortening a chat by its oldest messages until the prompt fits the context."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import msgspec

from puna.chat.templates.messages import Message, remaining
from puna.engine.requests import text_size
from puna.errors import TemplateError

#: Renders the chat from the message of this index on, after all earlier system messages.
Render = Callable[[int], str]

#: Assumed size of a message's markup, in characters.
_FRAME = 16
#: Tries aimed by the sizes of messages, before bisecting the rest.
_AIMED = 6


@dataclass(frozen=True)
class Fitted:
    """A prompt, the messages in it, its length in tokens, and how many messages were left out."""

    prompt: str
    messages: list[Message]
    count: int
    dropped: int


def newest(messages: Sequence[Message], max_bytes: int) -> tuple[list[Message], int]:
    """Return the system messages and as many of the newest others as have at most `max_bytes` together.

    Also return the bytes of text left out. The last message stays, however long.
    """
    sizes = [size(message) for message in messages]
    left_out = sum(sizes) - max_bytes
    start = dropped = 0
    while dropped < left_out and start < len(messages) - 1:
        if messages[start].role != "system":
            dropped += sizes[start]
        start += 1
    return remaining(messages, start), dropped


def size(message: Message) -> int:
    """Return the bytes of text in a message."""
    calls = len(msgspec.json.encode(message.tool_calls)) if message.tool_calls else 0
    return text_size(message.content) + text_size(message.thinking) + calls


def fit_chat(messages: Sequence[Message], render: Render, count: Callable[[str], int], limit: int) -> Fitted:
    """Return the prompt of at most `limit` tokens with the fewest messages dropped.

    The last message stays even if it alone is too long; if the template refuses to begin there,
    nothing is dropped and the engine has to cut tokens. More messages mean more tokens, so the cut is found
    by trying; aimed by the sizes of the messages, that mostly takes two or three tries. Raises
    TemplateError if the whole chat cannot be rendered.
    """
    everything = render(0)
    total = count(everything)
    if total <= limit or len(messages) < 2:
        return Fitted(everything, list(messages), total, 0)
    sizes = _Sizes(messages)
    known, tokens = 0, total  # the last try, and its size
    best: Fitted | None = None
    low, high = 1, len(messages) - 1  # the first message to keep lies between these
    tries = 0
    while low <= high:
        tries += 1
        middle = (low + high) // 2 if tries > _AIMED else sizes.aim(known, tokens, limit, low, high)
        start, prompt = _next_renderable(render, middle, high)
        if start is None:
            high = middle - 1  # nothing from the middle on can be rendered
            continue
        known, tokens = start, count(prompt)
        if tokens <= limit:
            kept = remaining(messages, start)
            best = Fitted(prompt, kept, tokens, len(messages) - len(kept))
            high = middle - 1
        else:
            low = start + 1
    if best is not None:
        return best
    kept = remaining(messages, len(messages) - 1)
    try:
        prompt = render(len(messages) - 1)
    except TemplateError:
        return Fitted(everything, list(messages), total, 0)
    return Fitted(prompt, kept, count(prompt), len(messages) - len(kept))


class _Sizes:
    """Sizes of a chat from each message on."""

    def __init__(self, messages: Sequence[Message]) -> None:
        def dropped(message: Message) -> int:
            if message.role == "system":
                return 0
            return _FRAME + len(message.content) + len(message.thinking) + sum(map(_size, message.tool_calls))

        self._gone = [0, *accumulate(dropped(message) for message in messages)]
        self._whole = self._gone[-1] + sum(
            _FRAME + len(message.content) for message in messages if message.role == "system"
        )

    def aim(self, known: int, tokens: int, limit: int, low: int, high: int) -> int:
        """Return the message from `low` to `high` from which on there are about `limit` tokens.

        From message `known` on there were `tokens`.
        """
        left = (self._whole - self._gone[known]) * limit / max(tokens, 1)
        return min(bisect_left(self._gone, self._whole - left, low, high), high)


def _size(call: object) -> int:
    return len(str(call))


def _next_renderable(render: Render, start: int, end: int) -> tuple[int, str] | tuple[None, str]:
    """Return the first cut from `start` to `end` that the template accepts: some refuse to begin mid-turn."""
    for cut in range(start, end + 1):
        try:
            return cut, render(cut)
        except TemplateError:
            continue
    return None, ""
