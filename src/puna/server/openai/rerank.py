"""`/v1/rerank`: documents in the order of how well they answer a query, as Cohere and Jina have it."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.server.http.decoding import read
from puna.server.http.replies import json_reply
from puna.server.http.routing import route
from puna.server.jobs import embeddings
from puna.server.jobs.backend import Backend
from puna.server.jobs.rerank import RerankRequest, rerank


def routes(backend: Backend) -> list[Route]:
    async def ranked(request: Request) -> Response:
        body = await read(request, RerankRequest)
        body.request()
        order = backend.order(embeddings.find(backend, body.model), {}, ignored=body.ignored)
        reply, _ = await rerank(backend, order, body)
        return json_reply(reply)

    return [route("/v1/rerank", ranked, "POST")]
