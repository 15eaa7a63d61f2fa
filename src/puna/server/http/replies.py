"""Replies on the wire: JSON objects, JSON lines, server-sent events, and errors in each API's form."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Container, Iterable, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from puna.errors import ContextLengthError, PunaError
from puna.server.http.logs import facts

JSON: Final = "application/json; charset=utf-8"
NDJSON: Final = "application/x-ndjson"
SSE: Final = "text/event-stream"
HTML: Final = "text/html; charset=utf-8"
TEXT: Final = "text/plain; charset=utf-8"

#: Lists are encoded in pieces of about this size, which take a millisecond.
_PIECE_BYTES: Final = 1 << 16

#: Line ends of Unicode, at which clients split streams if they use Python's `str.splitlines`, as the `ollama`
#: package does. In JSON they only occur in strings, so they can be escaped.
_LINE_ENDS: Final = {end.encode(): f"\\u{ord(end):04x}".encode() for end in "\u0085\u2028\u2029"}

_log = logging.getLogger(__name__)
_encoder = msgspec.json.Encoder()


def encode(value: Any) -> bytes:
    """Return plain data or a struct as compact UTF-8 JSON, on one line for every reader."""
    data = _encoder.encode(value)
    for end, escaped in _LINE_ENDS.items():
        data = data.replace(end, escaped)
    return data


def json_reply(value: Any, status: int = 200, content_type: str = JSON) -> Response:
    return Response(encode(value), status, headers={"content-type": content_type})


def text_reply(text: str, status: int = 200) -> Response:
    return Response(text, status, headers={"content-type": TEXT})


def empty(status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(None, status, headers=headers)


class ListReply:
    """A response of one JSON object: `fields`, followed by the list `name` of `items`; or of the list alone.

    It is encoded and sent piece by piece, with other requests served in between, so there may be many
    `items`, and they may come from a generator. `fields` is a mapping or a struct with at least one field;
    None gives the list alone.
    """

    def __init__(self, fields: Any, name: str, items: Iterable[Any]) -> None:
        self._begin, self._end = b"[", b"]"
        if fields is not None:
            self._begin, self._end = encode(fields)[:-1] + b"," + encode(name) + b":[", b"]}"
        self._items = items

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", JSON.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        piece = bytearray(self._begin)
        for number, item in enumerate(self._items):
            if number > 0:
                piece += b","
            piece += encode(item)
            if len(piece) >= _PIECE_BYTES:
                await send({"type": "http.response.body", "body": bytes(piece), "more_body": True})
                piece.clear()
                await asyncio.sleep(0)  # sending alone does not let other tasks run
        await send({"type": "http.response.body", "body": bytes(piece + self._end), "more_body": False})


#: Signs of life of a silent stream. JSON lines have no comments, and clients such as the ollama package fail
#: at empty lines, but a line may begin with a space.
COMMENT: Final = b": still here\n\n"
SPACE: Final = b" "


class StreamReply:
    """A response with one body part per encoded item.

    The reply begins with the first item, or `at_once`. An error before that is the whole reply, with a status
    of its own; after it, `on_error` makes the last part. When nothing has been sent for `ping_s` seconds,
    `ping` is, which also begins the reply. If the client leaves early, `items` is closed, which ends the
    generation behind it.
    """

    def __init__(
        self,
        items: AsyncGenerator[bytes, None],
        content_type: str,
        on_error: Callable[[Exception], bytes],
        headers: Mapping[str, str] | None = None,
        *,
        ping: bytes = b"",
        ping_s: float = math.inf,
        at_once: bool = False,
    ) -> None:
        self._items = items
        self._headers = {"content-type": content_type, "cache-control": "no-cache", **(headers or {})}
        self._on_error = on_error
        self._ping = ping
        self._ping_s = ping_s
        self._at_once = at_once
        self._begun = False
        self._sent_s = 0.0  # by time.monotonic

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pinging = None
        async with contextlib.aclosing(self._items):
            try:
                if self._at_once:
                    await self._send(b"", send)
                if not math.isinf(self._ping_s):
                    pinging = asyncio.create_task(self._ping_when_silent(send))
                async for item in self._items:
                    await self._send(item, send)
            except Exception as error:
                if not self._begun:
                    raise
                if not isinstance(error, PunaError):
                    _log.exception("a stream failed")
                await self._send(self._on_error(error), send)
            finally:
                if pinging is not None:
                    pinging.cancel()
                    await asyncio.gather(pinging, return_exceptions=True)
        await self._send(b"", send, more=False)

    async def _send(self, part: bytes, send: Send, *, more: bool = True) -> None:
        self._sent_s = time.monotonic()
        if not self._begun:
            self._begun = True
            headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": part, "more_body": more})

    async def _ping_when_silent(self, send: Send) -> None:
        self._sent_s = self._sent_s or time.monotonic()
        while True:
            left_s = self._sent_s + self._ping_s - time.monotonic()
            if left_s > 0:
                await asyncio.sleep(left_s)
            else:
                await self._send(self._ping, send)


def named_event(event: msgspec.Struct) -> bytes:
    """Return a struct as a server-sent event named after its tag."""
    return b"event: " + str(event.__struct_config__.tag).encode() + b"\ndata: " + encode(event) + b"\n\n"


async def json_lines(items: AsyncGenerator[Any, None]) -> AsyncGenerator[bytes, None]:
    """Yield `items` as JSON lines."""
    async with contextlib.aclosing(items):
        async for item in items:
            yield encode(item) + b"\n"


#: A header that Anthropic's clients send with every request.
ANTHROPIC_VERSION: Final = "anthropic-version"


#: Paths of llama.cpp's server and of vLLM outside of `/v1`.
LLAMA_SERVER_PATHS: Final = frozenset(
    (
        "/health", "/props", "/slots", "/lora-adapters", "/completion", "/completions", "/infill",
        "/tokenize", "/detokenize", "/apply-template", "/rerank", "/reranking", "/score", "/pooling",
        "/embedding", "/embeddings",
    )
)  # fmt: skip

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_LLAMA_SERVER_TYPES = _OPENAI_TYPES | {503: "unavailable_error"}
_ANTHROPIC_TYPES = _OPENAI_TYPES | {413: "request_too_large", 503: "overloaded_error"}


async def error_reply(request: Request, error: Exception) -> Response:
    """Return the reply to a request that failed, even by a bug, before anything was sent."""
    status = error.status if isinstance(error, PunaError) else 500
    path = request.scope["path"]  # `request.url` fails for a malformed query or Host header
    if status >= 500:
        _log.warning("%s %s: %s: %s", request.method, path, type(error).__name__, error)
    return json_reply(error_writer(path, request.headers)(error), status)


def error_writer(path: str, headers: Container[str] = ()) -> Callable[[Exception], dict[str, Any]]:
    """Return the function that writes errors for `path`; below `/v1`, a header tells Anthropic's clients."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic_error
    if path == "/v1" or path.startswith("/v1/"):
        return anthropic_error if ANTHROPIC_VERSION in headers else openai_error
    return llama_server_error if path in LLAMA_SERVER_PATHS else native_error


def native_error(error: Exception) -> dict[str, Any]:
    return {"error": error_text(error)}


def openai_error(error: Exception) -> dict[str, Any]:
    status = error.status if isinstance(error, PunaError) else 500
    kind = _OPENAI_TYPES.get(status, "api_error")
    code = "context_length_exceeded" if isinstance(error, ContextLengthError) else None
    return {"error": {"message": error_text(error), "type": kind, "param": None, "code": code}}


def llama_server_error(error: Exception) -> dict[str, Any]:
    status = error.status if isinstance(error, PunaError) else 500
    kind = _LLAMA_SERVER_TYPES.get(status, "server_error")
    return {"error": {"code": status, "message": error_text(error), "type": kind}}


def llama_server_error_event(error: Exception) -> bytes:
    return b"data: " + encode(llama_server_error(error)) + b"\n\n"


def anthropic_error(error: Exception) -> dict[str, Any]:
    status = error.status if isinstance(error, PunaError) else 500
    text = error_text(error)
    if isinstance(error, ContextLengthError):
        text = f"prompt is too long: {text}"  # by which Claude Code knows that it has to compact
    described = {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": text}
    return {"type": "error", "error": described, "request_id": facts().id or None}


def anthropic_error_event(error: Exception) -> bytes:
    return b"event: error\ndata: " + encode(anthropic_error(error)) + b"\n\n"


def native_error_line(error: Exception) -> bytes:
    return encode(native_error(error)) + b"\n"


def native_error_event(error: Exception) -> bytes:
    return b"event: error\ndata: " + encode(native_error(error)) + b"\n\n"


def openai_error_event(error: Exception) -> bytes:
    return b"data: " + encode(openai_error(error)) + b"\n\n"


def error_text(error: Exception) -> str:
    """Return what a client may know of an error."""
    # Only messages written for people leave the server; other errors are bugs.
    return str(error) if isinstance(error, PunaError) else "internal error; the server's log says more"
