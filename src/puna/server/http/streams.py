"""Streamed replies: signs of life in silent ones, and streams kept for clients that lose the connection.

The events of a request with `X-Stream-Id` are numbered. If its connection breaks, it goes on for `LINGER_S`
without its client, which can take the stream up after any event.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncGenerator, Callable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from puna.errors import PunaError, RequestError, ServerBusyError, StreamNotFoundError, shown
from puna.server.http.connections import caller
from puna.server.http.event_log import EventLog
from puna.server.http.replies import COMMENT, NDJSON, SPACE, SSE, StreamReply, native_error_line

#: The header with the name that a client gives a stream.
STREAM_ID: Final = "x-stream-id"

#: Too long to be guessed: without keys, all clients are one owner.
_ID: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")

#: Kept streams: in all, and of one owner.
_MAX_KEPT: Final = 128
_MAX_OF_OWNER: Final = 32

Events = AsyncGenerator[bytes, None]
OnError = Callable[[Exception], bytes]

_log = logging.getLogger(__name__)


class Streams:
    """Maker of a server's streamed replies, which are never silent for longer than `ping_s` seconds."""

    def __init__(self, ping_s: float) -> None:
        self._ping_s = ping_s
        self._kept: dict[tuple[str, str], _KeptStream] = {}  # by owner and id

    def lines(self, lines: Events) -> ASGIApp:
        """Return a reply of JSON lines."""
        return StreamReply(lines, NDJSON, native_error_line, ping=SPACE, ping_s=self._ping_s)

    def events(self, events: Events, on_error: OnError, *, ping: bytes = COMMENT) -> ASGIApp:
        """Return a reply of server-sent events, kept if the request names the stream."""

        async def reply(scope: Scope, receive: Receive, send: Send) -> None:
            id = Headers(scope=scope).get(STREAM_ID)
            if id is None:
                plain = StreamReply(events, SSE, on_error, ping=ping, ping_s=self._ping_s)
                await plain(scope, receive, send)
            else:
                kept = self._keep(id, events, on_error, ping)
                await self._followed(kept, 0, at_once=False)(scope, receive, send)

        return reply

    def numbered(
        self, events: Events, on_error: OnError, *, ping: bytes = COMMENT, at_once: bool = True
    ) -> ASGIApp:
        """Return a reply of events with numbers, which begins `at_once`, even if there is none yet."""
        if ping is COMMENT:
            # After a number, clients such as the openai package take any empty line for an event.
            ping = COMMENT.rstrip() + b"\n"
        return StreamReply(events, SSE, on_error, ping=ping, ping_s=self._ping_s, at_once=at_once)

    def again(self, id: str, after: int) -> ASGIApp:
        """Return the rest of a stream of the caller. Raises StreamNotFoundError."""
        return self._followed(self._find(id), after, at_once=True)

    def stop(self, id: str) -> None:
        """End a stream of the caller and what generates it. Raises StreamNotFoundError."""
        self._find(id)
        self._forget((caller().digest, id))

    def _followed(self, kept: _KeptStream, after: int, *, at_once: bool) -> ASGIApp:
        return self.numbered(kept.log.after(after), kept.on_error, ping=kept.ping, at_once=at_once)

    def _find(self, id: str) -> _KeptStream:
        kept = self._kept.get((caller().digest, id))
        if kept is None:
            raise StreamNotFoundError(f"no stream {shown(id)} of yours is kept: send the request again")
        return kept

    def _keep(self, id: str, events: Events, on_error: OnError, ping: bytes) -> _KeptStream:
        if not _ID.fullmatch(id):
            raise RequestError(
                f"X-Stream-Id must have 16 to 64 letters, digits, - or _, such as a UUID, not {shown(id)}"
            )
        name = (caller().digest, id)
        if name in self._kept:
            raise RequestError(f"there is a stream {shown(id)}: GET /api/puna/streams/{id} takes it up")
        self._make_room(name[0])
        kept = self._kept[name] = _KeptStream(events, on_error, ping, lambda: self._forget(name))
        return kept

    def _make_room(self, owner: str) -> None:
        """Forget an ended stream if there are too many. Raises ServerBusyError if none has ended."""
        for own, most in ((True, _MAX_OF_OWNER), (False, _MAX_KEPT)):
            names = [name for name in self._kept if not own or name[0] == owner]
            if len(names) < most:
                continue
            ended = next((name for name in names if self._kept[name].task.done()), None)
            if ended is None:
                raise ServerBusyError(
                    f"{len(names)} streams with an X-Stream-Id go on, the most there may be"
                )
            self._forget(ended)

    def _forget(self, name: tuple[str, str]) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            kept.log.close()
            kept.task.cancel()


class _KeptStream:
    """A stream whose events are generated in a task of its own; `log` has them."""

    def __init__(
        self, events: Events, on_error: OnError, ping: bytes, on_deserted: Callable[[], None]
    ) -> None:
        self.log: Final = EventLog(_missed, on_deserted)
        self.on_error: Final = on_error
        self.ping: Final = ping
        # It counts against its key until it has ended, not only while its client listens.
        self.task: Final = asyncio.create_task(self._work(events, caller().in_progress.pop_all()))

    async def _work(self, events: Events, slot: contextlib.ExitStack) -> None:
        failure = None
        with slot:
            try:
                async with contextlib.aclosing(events):
                    async for event in events:
                        self.log.add(event)
            except Exception as error:
                failure = error
                if not self.log.listeners and not isinstance(error, PunaError):
                    _log.exception("a stream failed")
            finally:
                self.log.end(failure)


def _missed() -> bytes:
    raise StreamNotFoundError("the events that follow are no longer kept: send the request again")
