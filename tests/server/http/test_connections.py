"""Connections over real sockets, at times set by the test: no clock decides what is overdue."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from puna.server.http.connections import AcceptErrors, Connection, ConnectionLimits, Connections
from tests.waiting import PATIENCE_S

HEAD = b"POST /api/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
UPLOAD = HEAD.replace(b"/api/generate", b"/api/blobs/sha256:0")
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the body received."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        more = message["more_body"]
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Endless:
    """An application that sends without end, counting the bytes sent."""

    def __init__(self) -> None:
        self.sent = 0
        self.left = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        disconnected = asyncio.ensure_future(self._gone(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not disconnected.done():
            await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})
            self.sent += 10_000
            await asyncio.sleep(0)
        self.left.set()

    async def _gone(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


class Harness:
    """A server's connections, without the server."""

    def __init__(self, limits: ConnectionLimits, app: Any) -> None:
        self.connections = Connections(limits)
        self._config = uvicorn.Config(app, log_config=None, access_log=False, ws="none", lifespan="off")
        self._config.load()
        self._state = ServerState()
        self._sockets: list[socket.socket] = []

    async def connect(self, *, address: str = "", narrow: bool = False) -> socket.socket:
        """Return the client's end of a new connection from `address`; a `narrow` one has a small buffer."""
        server_end, client_end = socket.socketpair()
        if narrow:
            server_end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        client_end.setblocking(False)
        self._sockets.append(client_end)
        loop = asyncio.get_running_loop()
        make = partial(
            _From, address, connections=self.connections, config=self._config, server_state=self._state
        )
        await loop.connect_accepted_socket(partial(make, app_state={}), server_end)
        return client_end

    def close(self) -> None:
        for each in self._sockets:
            each.close()


class _From(Connection):
    def __init__(self, address: str, **named: Any) -> None:
        super().__init__(**named)
        self._address = address

    @property
    def client(self) -> tuple[str, int] | None:
        return (self._address, 1) if self._address else None

    @client.setter
    def client(self, value: tuple[str, int] | None) -> None:
        pass


@asynccontextmanager
async def harness(app: Any = echo, **limits: Any) -> AsyncIterator[Harness]:
    built = Harness(ConnectionLimits(**limits), app)
    try:
        yield built
    finally:
        built.close()


async def reply(client: socket.socket) -> bytes:
    """Return the next bytes received; empty at the end."""
    try:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 1 << 16), PATIENCE_S)
    except ConnectionResetError:
        return b""


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)


async def settled() -> None:
    """Wait until the loop has delivered everything sent."""
    for _ in range(20):
        await asyncio.sleep(0)


async def check_timeout(harness: Harness, client: socket.socket, after_s: float, setting: str) -> None:
    """Check that the server waits `after_s` for `client`, then closes it naming the setting."""
    await settled()
    began_s = time.monotonic()
    harness.connections.sweep(began_s + after_s - 1)
    await settled()
    assert len(harness.connections) == 1
    harness.connections.sweep(began_s + after_s + 1)
    answer = await reply(client)
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"PUNA_" + setting.encode() in answer
    assert await reply(client) == b""
    await settled()
    assert len(harness.connections) == 0


Scene = Callable[[], Awaitable[None]]


def play(scene: Scene) -> None:
    asyncio.run(scene())  # type: ignore[arg-type]


@pytest.mark.parametrize("sent", [b"", b"GET / HT", HEAD[:-2]], ids=["nothing", "a line", "no end"])
def test_header_must_be_complete_in_time(sent: bytes) -> None:
    async def scene() -> None:
        async with harness(header_s=30) as here:
            client = await here.connect()
            await send(client, sent)
            await check_timeout(here, client, 30, "HEADER_TIMEOUT")

    play(scene)


def test_further_header_bytes_do_not_extend_the_time() -> None:
    async def scene() -> None:
        async with harness(header_s=30) as here:
            client = await here.connect()
            began_s = time.monotonic()
            for after_s in range(0, 30, 5):
                await send(client, b"G")
                await settled()
                here.connections.sweep(began_s + after_s)
            await check_timeout(here, client, 30, "HEADER_TIMEOUT")

    play(scene)


@pytest.mark.parametrize("head", [HEAD, UPLOAD], ids=["a request", "an upload"])
def test_body_must_not_pause_for_long(head: bytes) -> None:
    async def scene() -> None:
        async with harness(client_s=60) as here:
            client = await here.connect()
            await send(client, head + b"123")
            await check_timeout(here, client, 60, "CLIENT_TIMEOUT")

    play(scene)


def test_body_must_be_complete_in_time_but_an_upload_may_take_longer() -> None:
    async def scene() -> None:
        async with harness(client_s=1e9, body_s=300) as here:
            client = await here.connect()
            await send(client, HEAD + b"123")
            await check_timeout(here, client, 300, "BODY_TIMEOUT")
            client = await here.connect()
            await send(client, UPLOAD + b"123")
            await settled()
            here.connections.sweep(time.monotonic() + 1e6)
            await send(client, b"4567890")
            assert (await reply(client)).endswith(b"1234567890")

    play(scene)


def test_body_must_not_arrive_in_countless_small_chunks() -> None:
    async def scene() -> None:
        async with harness() as here:
            client = await here.connect()
            head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            some = b"1\r\nx\r\n" * 4000 + b"40\r\n" + b"y" * 64 + b"\r\n"
            for _ in range(2):  # chunks are counted per request
                await send(client, head + some + b"0\r\n\r\n")
                answer = await reply(client)
                while not answer.endswith(b"y"):
                    answer += await reply(client)
            await send(client, head + b"100\r\n" + b"y" * 256 + b"\r\n" + some + some)
            answer = await reply(client)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert b"more than 4,096 chunks of less than 32 bytes" in answer
            client = await here.connect()
            large = b"40\r\n" + b"y" * 64 + b"\r\n"
            await send(client, head + large * 20_000 + b"0\r\n\r\n")
            assert (await reply(client)).startswith(b"HTTP/1.1 200 ")

    play(scene)


def test_connection_idle_between_requests_does_not_time_out() -> None:
    async def scene() -> None:
        async with harness(header_s=30) as here:
            client = await here.connect()
            for _ in range(2):
                await send(client, HEAD + b"1234567890")
                assert (await reply(client)).endswith(b"1234567890")
                here.connections.sweep(time.monotonic() + 1e6)
            await send(client, b"GET")  # the time for the next request starts with its first byte
            await check_timeout(here, client, 30, "HEADER_TIMEOUT")

    play(scene)


def test_client_that_does_not_read_holds_little_memory_for_a_limited_time() -> None:
    async def scene() -> None:
        app = Endless()
        async with harness(app, client_s=60) as here:
            client = await here.connect()
            await send(client, GET)
            held = -1
            while held != app.sent:  # until the server accepts no more
                held = app.sent
                await asyncio.sleep(0.05)
            assert held < 2_000_000
            began_s = time.monotonic()
            here.connections.sweep(began_s)
            here.connections.sweep(began_s + 59)
            assert len(here.connections) == 1
            while len(await reply(client)) == 1 << 16:  # the client reads after all
                pass
            await settled()
            assert app.sent > held
            while held != app.sent:
                held = app.sent
                await asyncio.sleep(0.05)
            began_s = time.monotonic()
            here.connections.sweep(began_s)
            here.connections.sweep(began_s + 61)
            await asyncio.wait_for(app.left.wait(), PATIENCE_S)
            assert len(here.connections) == 0

    play(scene)


def test_unread_answer_does_not_keep_a_closing_connection_open() -> None:
    async def whole(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"x" * 50_000})

    async def scene() -> None:
        async with harness(whole, client_s=60) as here:
            client = await here.connect(narrow=True)
            await send(client, GET)
            assert len(await reply(client)) > 0
            began_s = time.monotonic()
            here.connections.sweep(began_s)
            here.connections.sweep(began_s + 59)
            await settled()
            assert len(here.connections) == 1
            here.connections.sweep(began_s + 61)
            await settled()
            assert len(here.connections) == 0

    play(scene)


def test_longest_idle_connection_makes_room_unless_it_has_a_request() -> None:
    async def scene() -> None:
        async with harness(total=3) as here:
            first, second = await here.connect(), await here.connect()
            await send(second, b"GET /")  # incomplete
            await settled()
            third = await here.connect()
            await send(first, HEAD + b"1234567890")
            assert (await reply(first)).endswith(b"1234567890")  # so it has just become idle
            fourth = await here.connect()
            assert await reply(second) == b""
            for client in (first, third, fourth):
                await send(client, HEAD + b"1234567890")
                assert (await reply(client)).endswith(b"1234567890")
            assert len(here.connections) == 3

    play(scene)


def test_requests_in_progress_are_not_ended_to_make_room() -> None:
    async def scene() -> None:
        app = Endless()
        async with harness(app, total=1) as here:
            busy = await here.connect()
            await send(busy, GET)
            await reply(busy)
            answer = await reply(await here.connect())
            assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"PUNA_MAX_CONNECTIONS" in answer
            assert await reply(busy)
            busy.close()
            await asyncio.wait_for(app.left.wait(), PATIENCE_S)
            assert len(here.connections) == 0

    play(scene)


def test_connections_are_limited_per_address_except_for_this_machine() -> None:
    async def scene() -> None:
        async with harness(per_address=2) as here:
            for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
                await here.connect(address=address)
            answer = await reply(await here.connect(address="192.0.2.1"))
            assert b"more than 2 connections from 192.0.2.1; PUNA_MAX_CONNECTIONS_PER_ADDRESS" in answer
            for address in ("127.0.0.1", "127.0.0.1", "127.0.0.1", "::1", "::1", "::1", "::ffff:127.0.0.1"):
                client = await here.connect(address=address)
                await send(client, HEAD + b"1234567890")
                assert (await reply(client)).endswith(b"1234567890")
            await settled()
            assert len(here.connections) == 3 + 7

    play(scene)


def test_accept_failures_are_logged_once_a_second_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(AcceptErrors())
        error = OSError(24, "Too many open files")
        for _ in range(2000):
            loop.call_exception_handler(
                {"message": "socket.accept() out of system resource", "exception": error}
            )
        while not caplog.records:
            await asyncio.sleep(0.05)
        loop.call_exception_handler({"message": "something else"})

    with caplog.at_level(logging.ERROR):
        play(scene)
    first, other = caplog.records
    assert "Too many open files (2000 failures" in first.getMessage()
    assert other.name == "asyncio"
