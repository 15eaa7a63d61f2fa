"""From the messages of a chat to a prompt that fits the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from puna.prompt import Message, fit_chat_async
from puna.runner.client import Runner
from puna.server.jobs.backend import Prompt


async def fit(
    messages: Sequence[Message],
    render: Callable[[list[Message]], str],
    runner: Runner,
    before: Sequence[int] = (),
    *,
    truncate: bool,
) -> Prompt:
    """The prompt of `messages`, the oldest left out as far as needed to fit the runner's context.

    `before` are tokens put in front of it. Raises TemplateError when the messages cannot be rendered.
    """
    counted: dict[str, list[int]] = {}  # the whole chat first, then each shorter try

    async def count(text: str) -> int:
        counted[text] = await runner.tokenize(text, add_special=not before)
        return len(counted[text])

    if truncate:
        limit = runner.info.context_length - len(before)
        text = (await fit_chat_async(messages, render, count, limit)).prompt
    else:
        text = render(list(messages))
        await count(text)
    everything = next(iter(counted.values()))
    return Prompt(text, [*before, *counted[text]], dropped=len(everything) - len(counted[text]))
