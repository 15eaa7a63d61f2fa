"""Connections to MCP servers whose bytes and messages are counted: standard input and output, and HTTP.

The `mcp` package's own transport for stdio holds a line of any length, and so does its HTTP client a reply
in JSON.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import anyio.abc
import httpx2
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCResponse, jsonrpc_message_adapter
from pydantic import ValidationError

from puna.hosts import Host
from puna.mcp.config import ServerConfig
from puna.mcp.limits import CALL_S, END_S, MAX_BYTES, MAX_MESSAGES

#: What is kept of a server's standard error and of lines that are no messages, for an error.
_KEPT: Final = 2000
_CONNECT_S: Final = 10.0


CheckedTools = Callable[[list[Any]], list[dict[str, Any]]]


class ConnectionWatch:
    """Counts what a server sends, and notes why its connection ended."""

    def __init__(self) -> None:
        self.ended = False
        self.broken = ""  # the limit it broke
        self.noise = b""  # a line on standard output that is no message
        self.errors = b""  # the end of its standard error
        self._bytes = self._messages = 0

    def begin(self) -> None:
        """Count anew: something is asked."""
        self._bytes = self._messages = 0
        if not self.ended:
            self.broken = ""  # a reply over HTTP, whose server can go on

    def count(self, size: int) -> bool:
        """Count bytes. Return whether there may be more."""
        self._bytes += size
        if self._bytes > MAX_BYTES:
            self.broken = f"it sent more than {MAX_BYTES >> 20} MB at once"
        return self._bytes <= MAX_BYTES

    def count_message(self) -> bool:
        """Count a message. Return whether there may be more."""
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            self.broken = f"it sent more than {MAX_MESSAGES} messages at once"
        return self._messages <= MAX_MESSAGES


class Inbound:
    """The messages of a server, as the `mcp` package reads them: counted, and lists of tools checked."""

    def __init__(self, inner: Any, watch: ConnectionWatch, checked: CheckedTools) -> None:
        self._inner = inner
        self._watch = watch
        self._checked = checked

    @property
    def last_context(self) -> Any:
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        try:
            item: SessionMessage | Exception = await self._inner.receive()
        except anyio.EndOfStream:
            self._watch.ended = True
            raise
        if not self._watch.count_message():
            self._watch.ended = True
            raise anyio.EndOfStream
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            result = item.message.result
            if isinstance(tools := result.get("tools"), list):
                result["tools"] = self._checked(tools)
        return item

    def __aiter__(self) -> Inbound:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Inbound:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


@asynccontextmanager
async def connected(
    config: ServerConfig, watch: ConnectionWatch, checked: CheckedTools
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams of messages from and to a server. Raises OSError if its program cannot be started.

    `checked` gets each list of tools as the server wrote it and returns those the package may read.
    """
    transport = _over_http(config, watch) if config.url else _over_stdio(config, watch)
    async with transport as (received, sending):
        yield Inbound(received, watch, checked), sending


@asynccontextmanager
async def _over_http(config: ServerConfig, watch: ConnectionWatch) -> AsyncIterator[tuple[Any, Any]]:
    async def count(response: httpx2.Response) -> None:
        response.stream = _Counted(response.stream, watch)

    host = Host(address=urlsplit(config.url).hostname or "")
    client = httpx2.AsyncClient(
        # Without compression, the bytes that are counted are those that are kept.
        headers={**config.headers, "Accept-Encoding": "identity"},
        # A stream may be silent for as long as a call may take, which the call itself limits.
        timeout=httpx2.Timeout(CALL_S, read=None, connect=_CONNECT_S),
        trust_env=not host.is_loopback,
        event_hooks={"response": [count]},
    )
    client_streams = streamable_http_client(config.url, http_client=client, max_sse_event_size=MAX_BYTES)
    async with client, client_streams as streams:
        yield streams


class _Counted(httpx2.AsyncByteStream):
    """The bytes of a reply, which ends where they are too many or compressed."""

    def __init__(self, inner: Any, watch: ConnectionWatch) -> None:
        self._inner = inner
        self._watch = watch

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            if not self._watch.count(len(chunk)):
                raise httpx2.StreamError(self._watch.broken)
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


@asynccontextmanager
async def _over_stdio(config: ServerConfig, watch: ConnectionWatch) -> AsyncIterator[tuple[Any, Any]]:
    process = await anyio.open_process(
        [config.command, *config.args],
        env=get_default_environment() | dict(config.env),
        cwd=config.cwd,
        start_new_session=True,  # so that Ctrl-C is the chat's alone, and its children end with it
    )
    arriving, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    sending, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read_messages, process, arriving, watch)
        tasks.start_soon(_read_errors, process, watch)
        tasks.start_soon(_write_messages, process, to_send)
        try:
            yield received, sending
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
            tasks.cancel_scope.cancel()


async def _read_messages(
    process: anyio.abc.Process,
    arriving: anyio.abc.ObjectSendStream[SessionMessage | Exception],
    watch: ConnectionWatch,
) -> None:
    assert process.stdout is not None
    held = bytearray()
    async with arriving:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            while watch.count(len(chunk := await process.stdout.receive())):
                held += chunk
                if b"\n" not in chunk:
                    continue
                *lines, rest = held.split(b"\n")
                held = bytearray(rest)
                for line in filter(None, map(bytes.strip, map(bytes, lines))):
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                    except ValidationError:
                        watch.noise = watch.noise or line[:_KEPT]
                        if not watch.count_message():
                            return
                    else:
                        await arriving.send(SessionMessage(message))


async def _read_errors(process: anyio.abc.Process, watch: ConnectionWatch) -> None:
    assert process.stderr is not None
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        while True:
            watch.errors = (watch.errors + await process.stderr.receive())[-_KEPT:]


async def _write_messages(
    process: anyio.abc.Process, to_send: anyio.abc.ObjectReceiveStream[SessionMessage]
) -> None:
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        async with to_send:
            async for item in to_send:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send(text.encode() + b"\n")


async def _end(process: anyio.abc.Process) -> None:
    """End a server and its children: by closing its standard input, then by signals."""
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        with anyio.move_on_after(END_S):
            await process.stdin.aclose()
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)  # the leader's id is the group's, even once it is gone
        with anyio.move_on_after(END_S):
            while process.returncode is None:
                await anyio.sleep(0.01)
        if process.returncode is not None and number is not None:
            break
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        with anyio.move_on_after(END_S):
            await process.aclose()
