"""From the messages of a chat to a prompt that fits the context."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from puna.errors import TemplateError
from puna.prompt import Message
from puna.runner.client import Runner
from puna.server.backend import Prompt

Render = Callable[[Sequence[Message]], str]


def remaining(messages: Sequence[Message], start: int) -> list[Message]:
    """The messages from `start` on, and all system messages before it: those are never dropped."""
    return [message for message in messages[:start] if message.role == "system"] + list(messages[start:])


async def fit(
    messages: Sequence[Message], render: Render, runner: Runner, before: Sequence[int] = (), *, truncate: bool
) -> Prompt:
    """The prompt of `messages`, with the oldest left out as far as needed to fit the runner's context.

    `before` are tokens put in front of it. The last message always stays, even if it alone is too long:
    then the engine cuts tokens. Raises TemplateError when the messages cannot be rendered.
    """
    limit = runner.info.context_length

    async def prompt(start: int) -> Prompt:
        text = render(remaining(messages, start))
        return Prompt(text, [*before, *await runner.tokenize(text, add_special=not before)])

    everything = await prompt(0)
    last = len(messages) - 1
    if not truncate or len(everything.ids) <= limit or last <= 0:
        return everything
    first = max(1, await _first_possible(messages, runner, limit - len(before)))
    for start in range(first, last):
        try:
            fitting = await prompt(start)
        except TemplateError:
            continue  # some templates refuse a chat that begins in the middle of a turn
        if len(fitting.ids) <= limit:
            break
    else:
        fitting = await prompt(last)
    return replace(fitting, dropped=len(everything.ids) - len(fitting.ids))


async def _first_possible(messages: Sequence[Message], runner: Runner, limit: int) -> int:
    """Where to begin trying: before it, the contents alone exceed `limit`, so rendering is not worth it."""
    counts = await asyncio.gather(*(runner.tokenize(message.content, False) for message in messages))
    sizes = [len(ids) for ids in counts]
    total = sum(sizes)
    for start, message in enumerate(messages):
        if total <= limit:
            return start
        if message.role != "system":
            total -= sizes[start]
    return len(messages) - 1
