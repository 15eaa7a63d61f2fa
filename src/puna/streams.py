"""Requests of the library on their way: submitted at once, answered as iterators."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress

from puna.completions import Reply, raised
from puna.conversation.chat_model import ChatModel
from puna.engine.events import Done, Embed, Embedded, Event, Failed, Generate

_ENDS = Done | Embedded | Failed


def submitted(chat: ChatModel, request: Generate | Embed) -> Iterator[Reply]:
    """Submit now (not at the first `next`), so that several requests share batches."""
    arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
    chat.submit(request, arrived.put)
    return _replies(chat, request, arrived)


def _replies(
    chat: ChatModel, request: Generate | Embed, arrived: queue.SimpleQueue[Event]
) -> Iterator[Reply]:
    missing = _answers(request)
    try:
        while missing:
            event = arrived.get()
            missing -= isinstance(event, _ENDS)
            yield raised(event)
    finally:
        if missing:
            chat.engine.cancel(request.id)


async def asubmitted(chat: ChatModel, request: Generate | Embed) -> AsyncGenerator[Reply, None]:
    """Submit at the first `anext`. Closing it, or cancelling the task in it, stops the work."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[Event] = asyncio.Queue()

    def sink(event: Event) -> None:
        # The loop may be closed before the engine hears that nobody listens any more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(arrived.put_nowait, event)

    chat.submit(request, sink)
    missing = _answers(request)
    try:
        while missing:
            event = await arrived.get()
            missing -= isinstance(event, _ENDS)
            yield raised(event)
    finally:
        if missing:
            chat.engine.cancel(request.id)


def _answers(request: Generate | Embed) -> int:
    """How many events end the parts of `request`."""
    return len(request.inputs) if isinstance(request, Embed) else request.samples
