"""Routes that answer exactly the methods they name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

Endpoint = Callable[[Request], Awaitable[ASGIApp]]


def route(path: str, endpoint: Endpoint, *methods: str) -> Route:
    """A route for `methods` alone: Starlette by itself adds HEAD wherever there is GET."""
    made = Route(path, endpoint, methods=methods)
    made.methods = set(methods)
    return made
