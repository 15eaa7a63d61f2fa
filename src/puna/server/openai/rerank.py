"""`/v1/rerank`: documents in the order of how well they answer a query, as Cohere and Jina have it."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import Route

from puna.server.http.replies import json_reply
from puna.server.http.routing import body_route
from puna.server.jobs import embeddings
from puna.server.jobs.backend import Backend
from puna.server.jobs.rerank import RerankRequest, rerank
from puna.server.openai.replies import Ranking


def routes(backend: Backend) -> list[Route]:
    async def ranked(body: RerankRequest) -> Response:
        """Documents in the order of how well they answer a query, as Cohere's and Jina's APIs give them."""
        body.request()
        order = backend.order(embeddings.find(backend, body.model), {}, ignored=body.ignored)
        reply, _ = await rerank(backend, order, body)
        return json_reply(reply)

    return [body_route("/v1/rerank", RerankRequest, ranked, gives=Ranking)]
