"""How large a request's body may be. Files on their way into the store are not limited."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from puna.errors import BodyTooLargeError, PunaError, RequestError
from puna.json_gauge import JsonGauge
from puna.server.http.disconnect import STREAMED
from puna.server.http.error_replies import error_reply


class BodyLimitMiddleware:
    """Answers 413 to a body of more than `most_bytes`, and 400 to JSON that is out of proportion.

    What a Content-Length announces is refused at once, what comes in chunks as soon as it is too much.
    """

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(STREAMED):
            await self._app(scope, receive, send)
            return
        gauge = JsonGauge()
        came = 0

        async def measured() -> Message:
            nonlocal came
            message = await receive()
            body = message.get("body", b"")
            came += len(body)
            self._check(came)
            try:
                gauge.feed(body)
            except ValueError as error:
                raise RequestError(f"the request body: {error}") from error
            return message

        try:
            self._check(_announced(scope))
            await self._app(scope, measured, send)
        except PunaError as error:
            await (await error_reply(Request(scope), error))(scope, receive, send)

    def _check(self, size: int) -> None:
        if size > self._most_bytes:
            raise BodyTooLargeError(
                f"the request body is larger than {self._most_bytes / 2**20:g} MB (PUNA_MAX_BODY_MB)"
            )


def _announced(scope: Scope) -> int:
    """The body's length by its header; 0 without."""
    text = Headers(scope=scope).get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
