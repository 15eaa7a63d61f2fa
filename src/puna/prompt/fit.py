"""Leaving out the oldest messages of a chat until its prompt fits the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from puna.errors import TemplateError
from puna.prompt.messages import Message

Render = Callable[[list[Message]], str]


@dataclass(frozen=True)
class Fitted:
    """A prompt, the messages in it, its length in tokens, and how many messages were left out."""

    prompt: str
    messages: list[Message]
    count: int
    dropped: int


def remaining(messages: Sequence[Message], start: int) -> list[Message]:
    """The messages from `start` on, after all system messages before: those are never dropped."""
    return [message for message in messages[:start] if message.role == "system"] + list(messages[start:])


def fit_chat(messages: Sequence[Message], render: Render, count: Callable[[str], int], limit: int) -> Fitted:
    """The prompt with the fewest messages dropped that has at most `limit` tokens.

    The last message stays even if it alone is too long; if the template refuses to begin there,
    nothing is dropped and the engine has to cut tokens. Where to cut is found by bisection, as more
    messages mean more tokens. Raises TemplateError if the whole chat cannot be rendered.
    """
    everything = render(list(messages))
    total = count(everything)
    if total <= limit or len(messages) < 2:
        return Fitted(everything, list(messages), total, 0)
    best: Fitted | None = None
    low, high = 1, len(messages) - 1  # the first message to keep lies between these
    while low <= high:
        middle = (low + high) // 2
        start, prompt = _next_renderable(messages, render, middle, high)
        if start is None:
            high = middle - 1  # nothing from the middle on can be rendered
            continue
        tokens = count(prompt)
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
        prompt = render(kept)
    except TemplateError:
        return Fitted(everything, list(messages), total, 0)
    return Fitted(prompt, kept, count(prompt), len(messages) - len(kept))


def _next_renderable(
    messages: Sequence[Message], render: Render, start: int, end: int
) -> tuple[int, str] | tuple[None, str]:
    """The first cut from `start` to `end` the template accepts: some refuse to begin mid-turn."""
    for cut in range(start, end + 1):
        try:
            return cut, render(remaining(messages, cut))
        except TemplateError:
            continue
    return None, ""
