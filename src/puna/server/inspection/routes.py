"""Routes of the server's own API: `/metrics`, `/openapi.json`, `/docs` and `/api/debug/cache`."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.errors import RequestError, RunnerError
from puna.server.fleet.looks import families, look
from puna.server.fleet.resident import ResidentModel
from puna.server.http.replies import HTML, TEXT, json_reply
from puna.server.http.routing import route
from puna.server.inspection.docs_page import POLICY, page
from puna.server.inspection.openapi import document
from puna.server.jobs.backend import Service


def _caches(backend: Service) -> list[Route]:
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


def _metrics(backend: Service) -> list[Route]:
    async def metrics(request: Request) -> Response:
        """The state of the server for Prometheus."""
        fleet = backend.fleet
        now = families(await look(fleet.loaded()), fleet.waiting())
        page, content_type = backend.metrics.page(now, request.headers.get("accept", ""))
        return Response(page, headers={"content-type": content_type})

    return [route("/metrics", metrics, "GET", content_type=TEXT)]


def _description(backend: Service) -> list[Route]:
    async def described(request: Request) -> Response:
        """This API, in the words of OpenAPI."""
        return json_reply(document(request.app.routes))

    async def docs(request: Request) -> Response:
        """This API as a page for people."""
        headers = {"content-type": HTML, "content-security-policy": POLICY}
        return Response(page(document(request.app.routes)), headers=headers)

    return [
        route("/openapi.json", described, "GET"),
        route("/docs", docs, "GET", content_type=HTML),
    ]


def routes(backend: Service) -> list[Route]:
    return [*_caches(backend), *_metrics(backend), *_description(backend)]
