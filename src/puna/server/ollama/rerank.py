"""`/api/rerank`: `/v1/rerank` with what requests and replies of Ollama's API have."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from starlette.responses import Response
from starlette.routing import Route

from puna.server.http.replies import json_reply
from puna.server.http.routing import body_route
from puna.server.jobs import embeddings
from puna.server.jobs.backend import Backend
from puna.server.jobs.rerank import RerankRequest, rerank
from puna.server.settings import keep_alive_s


class OllamaRerankRequest(RerankRequest):
    """`/api/rerank`"""

    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: Any = None


def routes(backend: Backend) -> list[Route]:
    async def ranked(body: OllamaRerankRequest) -> Response:
        """Documents in the order of how well they answer a query."""
        body.request()
        keep_s = keep_alive_s(body.keep_alive)
        order = backend.order(embeddings.find(backend, body.model), body.options, keep_s, body.ignored)
        reply, found = await rerank(backend, order, body)
        timings = {"total_duration": found.total_duration, "load_duration": found.load_duration}
        return json_reply(reply | timings | {"prompt_eval_count": found.tokens})

    return [body_route("/api/rerank", OllamaRerankRequest, ranked)]
