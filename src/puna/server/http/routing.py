"""Routes that answer exactly the methods they name, and know what they take and give."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Scope

from puna.server.http.bodies import Body, read
from puna.server.http.replies import JSON

Endpoint = Callable[[Request], Awaitable[ASGIApp]]
T = TypeVar("T", bound=Body)

#: A reply of raw bytes, or of none.
NOTHING: Final = ""


class ApiRoute(Route):
    """A route as `/openapi.json` describes it; the docstring of its endpoint says what it does.

    `takes` is the type its body is read as. `gives` is the type of its reply where that is declared, and
    `events` that of each item of a stream, if it is another; `content_types` are those it answers with;
    `query` are the parameters of its query. A route with a `header` answers only requests that have it.
    """

    takes: type[Body] | None = None
    gives: Any = None
    events: Any = None
    content_types: tuple[str, ...] = (JSON,)
    query: tuple[str, ...] = ()
    header: str = ""
    says: str = ""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if self.header and self.header not in Headers(scope=scope):
            return Match.NONE, {}
        return super().matches(scope)


def route(
    path: str,
    endpoint: Endpoint,
    *methods: str,
    gives: Any = None,
    content_type: str = JSON,
    query: tuple[str, ...] = (),
    header: str = "",
) -> ApiRoute:
    """A route for `methods` alone: Starlette by itself adds HEAD wherever there is GET."""
    made = ApiRoute(path, endpoint, methods=methods)
    made.methods = set(methods)
    made.gives = gives
    made.content_types = (content_type,)
    made.query = query
    made.header = header
    made.says = endpoint.__doc__ or ""
    return made


def body_route(
    path: str,
    takes: type[T],
    endpoint: Callable[[T], Awaitable[ASGIApp]],
    *,
    method: str = "POST",
    gives: Any = None,
    events: Any = None,
    streams: str = "",
    content_type: str = JSON,
) -> ApiRoute:
    """A route whose endpoint gets the request's body as `takes`; it may stream in the type `streams`."""

    async def answer(request: Request) -> ASGIApp:
        return await endpoint(await read(request, takes))

    made = route(path, answer, method, gives=gives, content_type=content_type)
    made.takes = takes
    made.events = events
    made.says = endpoint.__doc__ or ""
    if streams:
        made.content_types = (content_type, streams)
    return made
