"""Numbered events, and streams of them that may be interrupted and go on where they were."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Final

from starlette.requests import Request

from puna.errors import RequestError

#: How long a log without a listener is kept.
LINGER_S: Final = 60.0
#: Bytes of events that a log keeps.
KEPT_BYTES: Final = 1 << 20


class EventLog:
    """Events numbered from `begin` + 1, the newest of which are kept, and the streams of those who listen.

    `on_missed` makes the event that a stream gets instead of events that are no longer kept, or raises an
    error. `on_deserted` is called when nobody has listened for `LINGER_S`. Events before `begin` are missed.
    """

    def __init__(
        self, on_missed: Callable[[], bytes], on_deserted: Callable[[], None] | None = None, begin: int = 0
    ) -> None:
        self.last = begin  # the number of the newest event
        self.listeners = 0
        self._none = min(begin, 0)  # the number that stands for no event
        self._on_missed = on_missed
        self._on_deserted = on_deserted
        self._events: deque[bytes] = deque()
        self._kept_bytes = 0
        self._news = asyncio.Event()
        self._is_ended = False
        self._failure: Exception | None = None
        self._deserted: asyncio.TimerHandle | None = None
        self._wait_for_listeners()

    @property
    def first(self) -> int:
        """The number of the oldest event that is kept."""
        return self.last - len(self._events) + 1

    def add(self, event: bytes) -> None:
        """Add an event in the form of server-sent events, without its number."""
        self.last += 1
        text = _numbered(self.last, event)
        self._events.append(text)
        self._kept_bytes += len(text)
        while self._kept_bytes > KEPT_BYTES and len(self._events) > 1:
            self._kept_bytes -= len(self._events.popleft())
        self._wake()

    def end(self, failure: Exception | None = None) -> None:
        """End all streams after the last event, with `failure` if there is one."""
        self._is_ended, self._failure = True, failure
        self._wake()

    def close(self) -> None:
        """Call `on_deserted` no more, unless somebody listens and leaves again."""
        if self._deserted is not None:
            self._deserted.cancel()
            self._deserted = None

    async def after(self, number: int) -> AsyncGenerator[bytes, None]:
        """Yield the events after the one with this number, until the log has ended."""
        self.listeners += 1
        self.close()
        try:
            at = number if self._none <= number <= self.last else self._none
            while True:
                if at < self.first - 1:
                    at = self.last
                    yield _numbered(at, self._on_missed())
                elif at < self.last:
                    at += 1
                    yield self._events[at - self.last - 1]
                elif not self._is_ended:
                    await self._news.wait()
                elif self._failure is not None:
                    raise self._failure
                else:
                    return
        finally:
            self.listeners -= 1
            if not self.listeners:
                self._wait_for_listeners()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _wait_for_listeners(self) -> None:
        if self._on_deserted is not None:
            self._deserted = asyncio.get_running_loop().call_later(LINGER_S, self._on_deserted)


def _numbered(number: int, event: bytes) -> bytes:
    return b"id: %d\n%b" % (number, event)


def last_event(request: Request) -> int:
    """Return the number of the last event that a client has, by `Last-Event-ID` or `after`; 0 without one.

    Raises RequestError.
    """
    given = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise RequestError(f"after must be the number of an event, not {given:.40}")
    return int(given)
