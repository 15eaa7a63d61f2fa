"""Answers as they are generated, for synchronous code and for asyncio.

Closing or dropping a stream stops its generation, even if it was never iterated.
"""

from __future__ import annotations

import asyncio
import queue
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from puna.conversation.chat_model import ChatModel
from puna.errors import PunaError, RequestError
from puna.library.completion import Call, Completion, Gathered, Stats
from puna.library.tools import ToolRounds
from puna.protocol import (
    Chunk,
    Done,
    Embed,
    Embedded,
    Event,
    Failed,
    Generate,
    Prompted,
    Transcribe,
    Transcribed,
)


class Events(Iterator[Event]):
    """The events of a submitted request, which is cancelled once nothing refers to them."""

    def __init__(self, chat: ChatModel, request: Generate | Embed | Transcribe) -> None:
        self._arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._missing = _parts(request)
        self._finish_thinking = partial(chat.finish_thinking, request.id)
        chat.submit(request, self._arrived.put)  # now, not at the first `next`: requests share batches
        self._cancel = _cancellation(self, chat, request)

    def __next__(self) -> Event:
        if not self._missing:
            raise StopIteration
        try:
            event = self._arrived.get()
        except KeyboardInterrupt:
            # Notebooks keep the frames of an error, so nobody else would end the request.
            self.close()
            raise
        self._missing -= isinstance(event, _ENDS)
        if not self._missing:
            self._cancel.detach()
        return _raised(event)

    def finish_thinking(self) -> None:
        if self._missing:
            self._finish_thinking()

    def close(self) -> None:
        self._missing = 0
        self._cancel()


class AsyncEvents(AsyncIterator[Event]):
    """`Events` for asyncio. The request is submitted when the first event is awaited."""

    def __init__(self, chat: ChatModel, request: Generate | Embed | Transcribe) -> None:
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
        """Submit the request, with its events delivered to the running event loop."""
        loop = asyncio.get_running_loop()
        arrived = self._arrived = asyncio.Queue[Event]()

        def sink(event: Event) -> None:
            # The loop may close before the engine sees the cancellation.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(arrived.put_nowait, event)

        if isinstance(self._request, Generate) and self._request.format is not None:
            # Compiling a format takes time and cannot be stopped, so a cancellation takes effect afterwards.
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

    def finish_thinking(self) -> None:
        if self._missing:
            self._chat.finish_thinking(self._request.id)

    def close(self) -> None:
        self._missing = 0
        if self._cancel is not None:
            self._cancel()


class _Answer:
    """The answer so far, common to both kinds of streams."""

    def __init__(self) -> None:
        self._gathered = Gathered()

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._gathered.text)

    @property
    def thinking(self) -> str:
        """The thinking so far, if the model thinks."""
        return "".join(self._gathered.thinking)

    @property
    def calls(self) -> list[Call]:
        """The tool calls so far."""
        return list(self._gathered.calls)

    @property
    def stats(self) -> Stats:
        """The statistics of the generation. Raises `RequestError` until it has ended."""
        if self._gathered.stats is None:
            raise RequestError("the stream has no statistics before its end")
        return self._gathered.stats

    def __repr__(self) -> str:
        stats = self._gathered.stats
        return f"<{type(self).__name__}: {stats.reason if stats else 'open'}, {self.text!r}>"


class EventStream:
    """A stream of what is made of a request's events, and a context manager that closes it."""

    _events: Events

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop the work and the iteration."""
        self._events.close()


class Stream(_Answer, EventStream, Iterator[Chunk]):
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

    def finish_thinking(self) -> None:
        """End the thinking now, or at its beginning, so that the answer begins."""
        self._events.finish_thinking()

    def completion(self) -> Completion:
        """Wait for the end and return the whole answer. Interrupting this stops the generation."""
        with self:
            for _ in self:
                pass
        _ = self.stats  # raises for a stream that was closed early
        return self._gathered.completion()


class AsyncStream(_Answer, AsyncIterator[Chunk]):
    """A `Stream` for asyncio: `async for chunk in model.achat(..., stream=True)`.

    Awaiting it just returns it, as users of other clients may expect.
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

    def finish_thinking(self) -> None:
        """End the thinking now, or at its beginning, so that the answer begins."""
        self._events.finish_thinking()

    async def aclose(self) -> None:
        """Stop the generation and the iteration."""
        self._events.close()

    async def completion(self) -> Completion:
        """Wait for the end and return the whole answer. Cancelling this stops the generation."""
        async with self:
            async for _ in self:
                pass
        _ = self.stats
        return self._gathered.completion()


class ToolStream(Stream):
    """A `Stream` over the answers of all rounds of a chat whose calls are executed.

    `text`, `calls` and `stats` are those of the newest round.
    """

    def __init__(self, chat: ChatModel, rounds: ToolRounds) -> None:
        super().__init__(Events(chat, rounds.request()))
        self._chat = chat
        self._rounds = rounds
        self._over = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Answers and results so far, as messages that continue the conversation."""
        return list(self._rounds.messages)

    def __next__(self) -> Chunk:
        while True:
            try:
                return super().__next__()
            except StopIteration:
                if self._over:
                    raise
            self._advance()

    def _advance(self) -> None:
        """Execute the calls of the round that has ended, and begin the next one."""
        self._over = True  # also if this raises
        calls = self._rounds.take(self._gathered.completion()) if self._gathered.stats is not None else []
        for call in calls:
            self._rounds.execute(call)
        if calls:
            request = self._rounds.request()
            self._gathered = Gathered()
            self._events = Events(self._chat, request)
            self._over = False

    def close(self) -> None:
        self._over = True
        super().close()

    def completion(self) -> Completion:
        """Wait for the end and return the last answer, with all `messages`."""
        return replace(super().completion(), messages=self.messages)


class AsyncToolStream(AsyncStream):
    """A `ToolStream` for asyncio. MCP servers are connected when the first chunk is awaited."""

    def __init__(self, chat: ChatModel, begin: Callable[[], ToolRounds]) -> None:
        _Answer.__init__(self)
        self._chat = chat
        self._begin = begin
        self._rounds: ToolRounds | None = None
        self._over = False

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Answers and results so far, as messages that continue the conversation."""
        return list(self._rounds.messages) if self._rounds is not None else []

    async def __anext__(self) -> Chunk:
        if self._rounds is None and not self._over:
            self._rounds = await asyncio.to_thread(self._begin)
            self._events = AsyncEvents(self._chat, self._rounds.request())
        while self._rounds is not None:
            try:
                return await super().__anext__()
            except StopAsyncIteration:
                if self._over:
                    raise
            await self._advance(self._rounds)
        raise StopAsyncIteration

    async def _advance(self, rounds: ToolRounds) -> None:
        self._over = True
        calls = rounds.take(self._gathered.completion()) if self._gathered.stats is not None else []
        for call in calls:
            await rounds.aexecute(call)
        if calls:
            request = rounds.request()
            self._gathered = Gathered()
            self._events = AsyncEvents(self._chat, request)
            self._over = False

    async def aclose(self) -> None:
        self._over = True
        if self._rounds is not None:
            self._events.close()

    async def completion(self) -> Completion:
        """Wait for the end and return the last answer, with all `messages`."""
        return replace(await super().completion(), messages=self.messages)


def rendered(chat: ChatModel, request: Generate) -> Prompted:
    """Return the rendered prompt of `request`."""
    arrived: queue.SimpleQueue[Event] = queue.SimpleQueue()
    chat.render(request, arrived.put)
    event = _raised(arrived.get())
    assert isinstance(event, Prompted)
    return event


_ENDS = Done | Embedded | Transcribed | Failed


def _parts(request: Generate | Embed | Transcribe) -> int:
    """Return the number of events that end the parts of `request`."""
    if isinstance(request, Transcribe):
        return 1
    return len(request.inputs) if isinstance(request, Embed) else request.samples


def _cancellation(
    events: Any, chat: ChatModel, request: Generate | Embed | Transcribe
) -> weakref.finalize[[int], Any]:
    """Return a finalizer that cancels the request when called or when `events` is collected."""
    cancel: Callable[[int], None] = chat.cancel
    cancellation = weakref.finalize(events, cancel, request.id)
    cancellation.atexit = False  # the engine is closed at exit anyway
    return cancellation


def _raised(event: Event) -> Event:
    if isinstance(event, Failed):
        raise PunaError.of_kind(event.kind, event.message)
    return event
