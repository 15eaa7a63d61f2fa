"""Endpoints that this version does not have: they say so, instead of looking like a wrong address."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.errors import UnavailableError
from puna.server.http.routing import route

_MISSING = {
    "/v1/audio/transcriptions": "transcribing audio",
}


def routes() -> list[Route]:
    async def answer(request: Request) -> Response:
        """Not available in this version."""
        path = request.scope["path"]
        raise UnavailableError(f"{_MISSING[path]} ({path}) is not available yet in this version")

    return [route(path, answer, "POST") for path in _MISSING]
