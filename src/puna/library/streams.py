"""Answers as they are generated, for ordinary code and for asyncio.

Whoever drops or closes a stream stops its generation, whether it was ever iterated or not.
"""

from __future__ import annotations

import asyncio
import queue
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from puna.conversation.chat_model import ChatModel
from puna.errors import PunaError, RequestError
from puna.library.completion import Call, Completion, Gathered, Stats
from puna.protocol import Chunk, Done, Embed, Embedded, Event, Failed, Generate, Prompted


class Events(Iterator[Event]):
    """The events of a submitted request, which is cancelled when nothing refers to them any more."""

    def __init__(self, chat: ChatModel, request: Generate | Embed) -> None:
        self._arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._missing = _parts(request)
        chat.submit(request, self._arrived.put)  # now, not at the first `next`: requests share batches
        self._cancel = _cancellation(self, chat, request)

    def __next__(self) -> Event:
        if not self._missing:
            raise StopIteration
        event = self._arrived.get()
        self._missing -= isinstance(event, _ENDS)
        if not self._missing:
            self._cancel.detach()
        return _raised(event)

    def close(self) -> None:
        self._missing = 0
        self._cancel()


class AsyncEvents(AsyncIterator[Event]):
    """`Events` for asyncio. The request is submitted when the first event is awaited."""

    def __init__(self, chat: ChatModel, request: Generate | Embed) -> None:
        self._chat = chat
        self._request = request
        self._missing = _parts(request)
        self._cancel: weakref.finalize[[int], Self] | None = None

    async def __anext__(self) -> Event:
        if not self._missing:
            raise StopAsyncIteration
        if self._cancel is None:
            await self._start()
        event = await self._arrived.get()
        self._missing -= isinstance(event, _ENDS)
        if not self._missing and self._cancel is not None:
            self._cancel.detach()
        return _raised(event)

    async def _start(self) -> None:
        """Submit the request, in the event loop that will be told of its events."""
        loop = asyncio.get_running_loop()
        arrived = self._arrived = asyncio.Queue[Event]()

        def sink(event: Event) -> None:
            # The loop may be closed before the engine has seen the cancellation.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(arrived.put_nowait, event)

        if isinstance(self._request, Generate) and self._request.format is not None:
            # Compiling a format takes time. Who stops waiting does not stop it, so it is told afterwards.
            submitting = loop.run_in_executor(None, self._chat.submit, self._request, sink)
            cancel, request_id = self._chat.cancel, self._request.id
            try:
                await asyncio.shield(submitting)
            except asyncio.CancelledError:
                submitting.add_done_callback(lambda _: cancel(request_id))
                raise
        else:
            self._chat.submit(self._request, sink)
        self._cancel = _cancellation(self, self._chat, self._request)

    def close(self) -> None:
        self._missing = 0
        if self._cancel is not None:
            self._cancel()


class _Answer:
    """What both kinds of streams know of their answer."""

    def __init__(self) -> None:
        self._gathered = Gathered()

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._gathered.text)

    @property
    def thinking(self) -> str:
        """What the model thought so far, if it thinks."""
        return "".join(self._gathered.thinking)

    @property
    def calls(self) -> list[Call]:
        """The tools that were called so far."""
        return list(self._gathered.calls)

    @property
    def stats(self) -> Stats:
        """How the generation ended. Raises `RequestError` until it has."""
        if self._gathered.stats is None:
            raise RequestError("the stream has no statistics yet: they come with its end")
        return self._gathered.stats

    def __repr__(self) -> str:
        stats = self._gathered.stats
        return f"<{type(self).__name__}: {stats.reason if stats else 'open'}, {self.text!r}>"


class Stream(_Answer, Iterator[Chunk]):
    """An answer as it is generated: an iterator over `Chunk`s of final text, and a context manager."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    def __next__(self) -> Chunk:
        for event in self._events:
            self._gathered.add(event)
            if isinstance(event, Chunk):
                return event
        raise StopIteration

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the generation. Nothing more comes."""
        self._events.close()

    def completion(self) -> Completion:
        """Wait for the end, and return all of it."""
        for _ in self:
            pass
        _ = self.stats  # a stream that was closed has no end
        return self._gathered.completion()


class AsyncStream(_Answer, AsyncIterator[Chunk]):
    """`Stream` for asyncio: `async for chunk in model.achat(..., stream=True)`.

    `await` on it does nothing but return it, for those used to clients where that is needed.
    """

    def __init__(self, events: AsyncEvents) -> None:
        super().__init__()
        self._events = events

    async def __anext__(self) -> Chunk:
        async for event in self._events:
            self._gathered.add(event)
            if isinstance(event, Chunk):
                return event
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, Self]:
        return self._itself().__await__()

    async def _itself(self) -> Self:
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the generation. Nothing more comes."""
        self._events.close()

    async def completion(self) -> Completion:
        """Wait for the end, and return all of it. Cancelling that stops the generation."""
        async with self:
            async for _ in self:
                pass
        _ = self.stats
        return self._gathered.completion()


def rendered(chat: ChatModel, request: Generate) -> Prompted:
    """What the prompt of `request` comes to."""
    arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
    chat.render(request, arrived.put)
    event = _raised(arrived.get())
    assert isinstance(event, Prompted)
    return event


_ENDS = Done | Embedded | Failed


def _parts(request: Generate | Embed) -> int:
    """How many events end the parts of `request`."""
    return len(request.inputs) if isinstance(request, Embed) else request.samples


def _cancellation(events: Any, chat: ChatModel, request: Generate | Embed) -> weakref.finalize[[int], Any]:
    """What cancels the request, when it is called or `events` are garbage."""
    cancel: Callable[[int], None] = chat.cancel
    cancellation = weakref.finalize(events, cancel, request.id)
    cancellation.atexit = False  # the engine is closed then anyway
    return cancellation


def _raised(event: Event) -> Event:
    if isinstance(event, Failed):
        raise PunaError.of_kind(event.kind, event.message)
    return event
