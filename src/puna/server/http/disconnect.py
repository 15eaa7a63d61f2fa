"""A client that goes away ends its request, whatever the request is doing: loading, waiting, generating."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Bodies read as a stream by their handler, which notices a disconnect itself.
STREAMED = "/api/blobs/"


class DisconnectMiddleware:
    """Reads the whole body, then cancels the handler as soon as the connection is gone.

    Without this, a reply that is still being computed would notice only when it is sent.
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
        body: Message = {"type": "http.request", "body": b"".join(parts), "more_body": False}
        await _run_while_connected(self._app, scope, body, receive, send)


async def _run_while_connected(
    app: ASGIApp, scope: Scope, body: Message, receive: Receive, send: Send
) -> None:
    gone = asyncio.ensure_future(receive())  # after the body, the only message to come is the disconnect
    delivered = False

    async def receive_body() -> Message:
        nonlocal delivered
        if not delivered:
            delivered = True
            return body
        return await asyncio.shield(gone)

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
