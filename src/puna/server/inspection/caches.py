"""`GET /api/debug/cache`, Puna's own: what the caches of the models in memory hold."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.errors import RequestError, RunnerError
from puna.server.fleet.resident import ResidentModel
from puna.server.http.replies import json_reply
from puna.server.http.routing import route
from puna.server.jobs.backend import Backend


def routes(backend: Backend) -> list[Route]:
    async def cache(request: Request) -> Response:
        """What the caches of one model hold, or of all in memory."""
        # None of them is loaded for it, or kept any longer.
        entries = backend.fleet.loaded()
        wanted = request.query_params.get("model", "")
        if wanted:
            path = str(backend.find(wanted).runnable_path())
            entries = [entry for entry in entries if entry.path == path]
        looks = await asyncio.gather(*map(_look, entries))
        models = [look for look in looks if look is not None]
        if wanted and not models:
            raise RequestError(f"model '{wanted}' is not in memory; ask it something first")
        return json_reply({"models": models})

    return [route("/api/debug/cache", cache, "GET", query=("model",))]


async def _look(entry: ResidentModel) -> dict[str, Any] | None:
    """What a model's caches hold; None when it is gone, or goes before it has said so."""
    if entry.runner is None:
        return None
    try:
        return {"name": entry.model.name, "caches": await entry.runner.contents()}
    except RunnerError:
        return None
