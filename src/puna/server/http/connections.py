"""Connections: their number, how long each may keep the server waiting, and the caller behind each.

A client that disconnects ends its request, whatever the request is doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Literal, get_args

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from puna.errors import ScopeError
from puna.server.http.replies import JSON, encode


def is_loopback(address: str) -> bool:
    """Whether `address` is this machine itself, so that only its own programs can have it."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)  # the form of IPv4 addresses on a socket for both
    return (mapped or found).is_loopback


def network_of(address: str) -> str:
    """Return the network that identifies a client: its address, or for IPv6 the /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


#: `read`: list models and show the server's state. `generate`: load models, generate text, embed texts.
#: `manage`: change the store, unload models, inspect caches, call tools.
KeyScope = Literal["read", "generate", "manage"]
SCOPES: Final[tuple[KeyScope, ...]] = get_args(KeyScope)


@dataclass(frozen=True)
class Caller:
    """The sender of a request. `client` identifies it in queues: the digest of its key, or its network."""

    client: str = ""
    key: str = ""  # its name
    digest: str = ""  # identifies the owner of stored responses; names of keys may be reused
    scopes: tuple[KeyScope, ...] = SCOPES
    # The request counts against its key until this is closed; work that outlives the request takes it over.
    in_progress: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, compare=False)

    def require(self, scope: KeyScope, what: str) -> None:
        """Raise ScopeError if the caller's key does not allow `what`."""
        if scope not in self.scopes:
            raise ScopeError(f"{what} needs the scope '{scope}', which the key '{self.key}' does not have")


#: Set while a request is served, and in the tasks started for it.
current: ContextVar[Caller | None] = ContextVar("caller", default=None)


def caller() -> Caller:
    """Return the caller of the current request; outside of requests, one who may do everything."""
    return current.get() or Caller()


#: asyncio's message about a failure to accept. It tries again every second, some two thousand times.
_MESSAGE = "socket.accept() out of system resource"
_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


class AcceptErrors:
    """Exception handler of an event loop that logs failures to accept once a second, with a count."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") != _MESSAGE:
            loop.default_exception_handler(context)
            return
        if not self._count:
            loop.call_later(_INTERVAL_S, self._say, context.get("exception"))
        self._count += 1

    def _say(self, error: object) -> None:
        _log.error(
            "cannot accept connections: %s (%d failures within %g s); allow more open files (ulimit -n), or "
            "set PUNA_MAX_CONNECTIONS to fewer",
            error,
            self._count,
            _INTERVAL_S,
        )
        self._count = 0


#: Paths whose handlers read the body as a stream, and so notice a disconnect themselves.
STREAMED = "/api/blobs/"


class DisconnectMiddleware:
    """Reads the whole body, then cancels the handler as soon as the connection is gone.

    Without it, the handler would notice a disconnect only when it sends its reply.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(STREAMED):
            await self._app(scope, receive, send)
            return
        parts = []
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body: list[Message] = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]
        parts.clear()
        await _run_while_connected(self._app, scope, body, receive, send)


async def _run_while_connected(
    app: ASGIApp, scope: Scope, body: list[Message], receive: Receive, send: Send
) -> None:
    """Run `app`, which gets the only item of `body`: large bodies are not kept longer than it needs them."""
    gone = asyncio.ensure_future(receive())  # after the body, only the disconnect can come

    async def receive_body() -> Message:
        return body.pop() if body else await asyncio.shield(gone)

    handler = asyncio.ensure_future(app(scope, receive_body, send))
    try:
        await asyncio.wait([handler, gone], return_when=asyncio.FIRST_COMPLETED)
        if not handler.done():
            handler.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await handler
    finally:
        for task in (handler, gone):
            task.cancel()
        await asyncio.gather(handler, gone, return_exceptions=True)


#: Paths of uploads, whose duration is not limited as long as data arrives.
_UPLOADS = "/api/blobs/"

_MAX_SMALL_CHUNKS = 4096
_SMALL_CHUNK = 32  # bytes


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits of connections, in seconds; `math.inf` and a `per_address` of 0 mean no limit."""

    total: int = 4096
    per_address: int = 256  # except for loopback addresses
    header_s: float = 30.0  # for a header, from its first byte, or from the connection if it is the first
    body_s: float = 300.0  # for a request's body, except uploads
    client_s: float = 60.0  # without a byte received of a body, or sent of a reply


class Connections:
    """All connections of a server, at most `limits.total`; `sweep` ends the overdue ones."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._open: dict[Connection, None] = {}
        self._of_address: Counter[str] = Counter()
        self._without_request: dict[Connection, None] = {}  # ordered by when they last sent something

    def __len__(self) -> int:
        return len(self._open)

    def sweep(self, now_s: float) -> None:
        """End connections that have kept the server waiting too long at `now_s`, by `time.monotonic`."""
        for connection in [*self._open]:
            connection.end_if_overdue(now_s)

    def enter(self, connection: Connection) -> str | None:
        """Add a new connection, and return the reason to refuse it, or None.

        If there are too many, the one without a complete request that has been silent longest is ended, so
        clients that keep connections open, or send half of a request, do not keep others out.
        """
        self._open[connection] = None
        self._of_address[connection.address] += 1
        most = self.limits.per_address
        if most and self._of_address[connection.address] > most and not is_loopback(connection.address):
            return (
                f"more than {most} connections from {connection.address}; "
                "PUNA_MAX_CONNECTIONS_PER_ADDRESS sets how many there may be"
            )
        if len(self._open) > self.limits.total:
            oldest = next(iter(self._without_request), None)
            if oldest is None:
                return (
                    f"the server has {self.limits.total} connections with a request in progress; "
                    "PUNA_MAX_CONNECTIONS sets how many there may be"
                )
            oldest.transport.abort()
            self.leave(oldest)
        return None

    def leave(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        if connection not in self._open:
            return
        del self._open[connection]
        self._without_request.pop(connection, None)
        self._of_address[connection.address] -= 1
        if not self._of_address[connection.address]:
            del self._of_address[connection.address]

    def note(self, connection: Connection, *, has_request: bool) -> None:
        """Note that data arrived, and whether a complete request is now being served."""
        self._without_request.pop(connection, None)
        if not has_request and connection in self._open:
            self._without_request[connection] = None


class _Messages(h11.Connection):
    """HTTP parser that refuses bodies of countless chunks, each of which costs the time of a kilobyte."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER)
        self.complaint = ""
        self._chunks = self._bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Data):
            self._chunks += 1
            self._bytes += len(event.data)
            if self._chunks > _MAX_SMALL_CHUNKS and self._bytes < _SMALL_CHUNK * self._chunks:
                self.complaint = (
                    f"the body comes in more than {_MAX_SMALL_CHUNKS:,} chunks of less than {_SMALL_CHUNK} "
                    "bytes on average; send larger ones, or a Content-Length"
                )
                raise h11.RemoteProtocolError(self.complaint)
        return event

    def start_next_cycle(self) -> None:
        super().start_next_cycle()
        self._chunks = self._bytes = 0


class Connection(H11Protocol):
    """A connection. uvicorn itself ends connections that are idle between requests."""

    def __init__(self, *arguments: Any, connections: Connections, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.conn: _Messages = _Messages()
        self.address = ""
        self._connections = connections
        self._phase: Literal["idle", "header", "body", "answer"] = "header"
        self._phase_s = self._moved_s = time.monotonic()
        self._unsent = 0  # bytes in the send buffer at the last sweep

    # --- events ---

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        refusal = self._connections.enter(self)
        if refusal is None:
            self._connections.note(self, has_request=False)
        else:
            self._refuse(503, refusal)

    def data_received(self, data: bytes) -> None:
        self._moved_s = time.monotonic()
        super().data_received(data)
        self._update_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_phase(answered=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(self.conn.complaint or msg)

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: requests for another protocol get HTTP, which is not worth a warning."""

    # --- limits ---

    def _update_phase(self, *, answered: bool = False) -> None:
        """Update the phase of the connection."""
        their = self.conn.their_state
        before = self._phase, self.cycle
        if their is h11.IDLE:
            # It is idle after an answer unless part of the next request is already here.
            self._phase = "idle" if answered and not self.conn.trailing_data[0] else "header"
        else:
            self._phase = "body" if their is h11.SEND_BODY else "answer"
        if (self._phase, self.cycle) != before or answered:
            self._phase_s = self._moved_s = time.monotonic()
        self._connections.note(self, has_request=self._phase == "answer")

    def end_if_overdue(self, now_s: float) -> None:
        limits = self._connections.limits
        waited_s = now_s - self._phase_s
        unsent = self.transport.get_write_buffer_size()
        unread = self._phase == "body" and not self.flow.read_paused
        if unsent < self._unsent or not (unsent or unread):
            self._moved_s = now_s
        self._unsent = unsent
        stuck = now_s - self._moved_s > limits.client_s
        if stuck and (self.flow.write_paused or self.transport.is_closing()):
            self.transport.abort()  # the client would not read the rest either
        elif self.transport.is_closing():
            pass
        elif self._phase == "header" and waited_s > limits.header_s:
            self._refuse(408, f"no complete header within {limits.header_s:g} s (PUNA_HEADER_TIMEOUT)")
        elif stuck and unread:
            self._refuse(408, f"no more of the body within {limits.client_s:g} s (PUNA_CLIENT_TIMEOUT)")
        elif self._phase == "body" and waited_s > limits.body_s and not self._is_upload():
            self._refuse(408, f"the body took longer than {limits.body_s:g} s (PUNA_BODY_TIMEOUT)")

    def _is_upload(self) -> bool:
        return str(self.scope["path"]).startswith(_UPLOADS)

    def _refuse(self, status: int, reason: str) -> None:
        """Reply with an error, unless a reply has begun, and end the connection."""
        if self.cycle is not None:  # its handler must not reply as well
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = encode({"error": reason})
            headers = [("content-type", JSON), ("content-length", str(len(body))), ("connection", "close")]
            phrase = HTTPStatus(status).phrase.encode()
            head = h11.Response(status_code=status, headers=headers, reason=phrase)
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
