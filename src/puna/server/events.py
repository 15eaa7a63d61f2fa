"""Routes of event streams that clients may take up again: kept ones, and the events of models."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.server.fleet.events import ModelEvent
from puna.server.http.bodies import NOTHING, route
from puna.server.http.event_log import last_event
from puna.server.http.replies import SSE, empty, native_error_event
from puna.server.jobs.service import Service

_AFTER: Final = ("after",)


def routes(backend: Service) -> list[Route]:
    streams = backend.streams

    async def models(request: Request) -> ASGIApp:
        """Stream what happens to models, after event number `after` or the header `Last-Event-ID`."""
        return streams.numbered(backend.fleet.events.after(last_event(request)), native_error_event)

    async def again(request: Request) -> ASGIApp:
        """Take up a stream whose request had `X-Stream-Id`, after number `after` or `Last-Event-ID`."""
        return streams.again(request.path_params["id"], last_event(request))

    async def stop(request: Request) -> Response:
        """End a stream whose request had `X-Stream-Id`."""
        streams.stop(request.path_params["id"])
        return empty(200)

    return [
        route("/api/puna/events", models, "GET", events=ModelEvent, content_type=SSE, query=_AFTER),
        route("/api/puna/streams/{id}", again, "GET", content_type=SSE, query=_AFTER),
        route("/api/puna/streams/{id}", stop, "DELETE", content_type=NOTHING),
    ]
