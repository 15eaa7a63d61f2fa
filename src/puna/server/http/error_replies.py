"""Errors as each API writes them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from puna.errors import PunaError
from puna.server.http.replies import encode, json_reply
from puna.server.http.request_facts import facts

#: The header that Anthropic's clients send with every request.
ANTHROPIC_VERSION: Final = "anthropic-version"

_log = logging.getLogger(__name__)

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = _OPENAI_TYPES | {413: "request_too_large", 503: "overloaded_error"}


async def error_reply(request: Request, error: Exception) -> Response:
    """The reply to a request that failed before anything was sent; also when a handler has a defect."""
    status = error.status if isinstance(error, PunaError) else 500
    path = request.scope["path"]  # `request.url` cannot be had of a malformed query or Host header
    if status >= 500:
        _log.warning("%s %s: %s: %s", request.method, path, type(error).__name__, error)
    return json_reply(error_writer(path, request.headers)(error), status)


def error_writer(path: str, headers: Container[str] = ()) -> Callable[[Exception], dict[str, Any]]:
    """Return how the API of this path writes errors; below `/v1`, Anthropic's clients tell by a header."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic_error
    if path == "/v1" or path.startswith("/v1/"):
        return anthropic_error if ANTHROPIC_VERSION in headers else openai_error
    return native_error


def native_error(error: Exception) -> dict[str, Any]:
    return {"error": _text(error)}


def openai_error(error: Exception) -> dict[str, Any]:
    status = error.status if isinstance(error, PunaError) else 500
    kind = _OPENAI_TYPES.get(status, "api_error")
    return {"error": {"message": _text(error), "type": kind, "param": None, "code": None}}


def anthropic_error(error: Exception) -> dict[str, Any]:
    status = error.status if isinstance(error, PunaError) else 500
    described = {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": _text(error)}
    return {"type": "error", "error": described, "request_id": facts().id or None}


def anthropic_error_event(error: Exception) -> bytes:
    return b"event: error\ndata: " + encode(anthropic_error(error)) + b"\n\n"


def native_error_line(error: Exception) -> bytes:
    return encode(native_error(error)) + b"\n"


def openai_error_event(error: Exception) -> bytes:
    return b"data: " + encode(openai_error(error)) + b"\n\n"


def _text(error: Exception) -> str:
    # Only messages written for people leave the server; anything else is a defect of ours.
    return str(error) if isinstance(error, PunaError) else "internal error; the server's log says more"
