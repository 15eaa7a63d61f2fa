"""`GET /api/debug/cache`, Puna's own: what the caches of the models in memory hold."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.errors import RequestError
from puna.server.backend import Backend
from puna.server.replies import json_reply
from puna.server.routing import route


def routes(backend: Backend) -> list[Route]:
    async def cache(request: Request) -> Response:
        """Of one model, or of all; none of them is loaded for it, or kept any longer."""
        entries = backend.scheduler.loaded()
        wanted = request.query_params.get("model", "")
        if wanted:
            path = str(backend.find(wanted).runnable_path())
            entries = [entry for entry in entries if entry.path == path and entry.runner is not None]
            if not entries:
                raise RequestError(f"model '{wanted}' is not in memory; ask it something first")
        models = [
            {"name": entry.model.name, "caches": await entry.runner.contents()}
            for entry in entries
            if entry.runner is not None
        ]
        return json_reply({"models": models})

    return [route("/api/debug/cache", cache, "GET")]
