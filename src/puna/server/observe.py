"""`GET /metrics`: the state of the server for Prometheus."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.server.backend import Backend
from puna.server.routing import route
from puna.server.running import families, look


def routes(backend: Backend) -> list[Route]:
    async def metrics(request: Request) -> Response:
        scheduler = backend.scheduler
        now = families(await look(scheduler.loaded()), scheduler.waiting(), scheduler.spare.process_bytes)
        page, content_type = backend.metrics.page(now, request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    return [route("/metrics", metrics, "GET")]
