"""The server's description of itself: `/openapi.json` for programs and `/docs` for people."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.server.http.replies import HTML, json_reply
from puna.server.http.routing import route
from puna.server.inspection.docs_page import POLICY, page
from puna.server.inspection.openapi import document
from puna.server.jobs.backend import Backend


def routes(backend: Backend) -> list[Route]:
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
