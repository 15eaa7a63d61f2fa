"""`GET /metrics`: the state of the server for Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.server.fleet.looks import families, look
from puna.server.http.replies import TEXT
from puna.server.http.routing import route
from puna.server.jobs.backend import Backend


def routes(backend: Backend) -> list[Route]:
    async def metrics(request: Request) -> Response:
        """The state of the server for Prometheus."""
        fleet = backend.fleet
        now = families(await look(fleet.loaded()), fleet.waiting())
        page, content_type = backend.metrics.page(now, request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    return [route("/metrics", metrics, "GET", content_type=TEXT)]
