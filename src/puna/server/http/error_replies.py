"""Errors as each API writes them."""

from __future__ import annotations

import logging
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from puna.errors import PunaError
from puna.server.http.replies import encode, json_reply

_log = logging.getLogger(__name__)

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


async def error_reply(request: Request, error: Exception) -> Response:
    """The reply to a request that failed before anything was sent; also when a handler has a defect."""
    status = error.status if isinstance(error, PunaError) else 500
    path = request.scope["path"]  # `request.url` cannot be had of a malformed query or Host header
    if status >= 500:
        _log.warning("%s %s: %s: %s", request.method, path, type(error).__name__, error)
    value = openai_error(error) if path.startswith("/v1/") else native_error(error)
    return json_reply(value, status)


def native_error(error: Exception) -> dict[str, Any]:
    return {"error": _text(error)}


def openai_error(error: Exception) -> dict[str, Any]:
    status = error.status if isinstance(error, PunaError) else 500
    kind = _OPENAI_TYPES.get(status, "api_error")
    return {"error": {"message": _text(error), "type": kind, "param": None, "code": None}}


def native_error_line(error: Exception) -> bytes:
    return encode(native_error(error)) + b"\n"


def openai_error_event(error: Exception) -> bytes:
    return b"data: " + encode(openai_error(error)) + b"\n\n"


def _text(error: Exception) -> str:
    # Only messages written for people leave the server; anything else is a defect of ours.
    return str(error) if isinstance(error, PunaError) else "internal error; the server's log says more"
