"""Routes of `/api/embed`, `/api/embeddings` and `/api/rerank`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import Field
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from puna.errors import ContextLengthError, EmbeddingError, GenerationError, RequestError, UnavailableError
from puna.protocol import Embed
from puna.server.http.bodies import Name, body_route
from puna.server.http.replies import ListReply, json_reply
from puna.server.jobs import embeddings
from puna.server.jobs.embeddings import RerankRequest, Vectors, check_inputs, rerank
from puna.server.jobs.own_fields import AdapterFields
from puna.server.jobs.service import LoadRequest, Service
from puna.server.settings import keep_alive_s


class EmbedRequest(AdapterFields):
    """The body of `/api/embed`."""

    model: Name = ""
    input: Any = None
    truncate: bool = True
    dimensions: int = 0
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: Any = None

    def request(self) -> Embed:
        return Embed(
            inputs=self.inputs, truncate=self.truncate, dimensions=self.dimensions, lora=self.adapters
        )

    @property
    def inputs(self) -> list[str | list[int]]:
        """The texts: none for an empty text, but one for an empty text in a list. Raises RequestError."""
        given = [] if self.input in (None, "") else self.input
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise RequestError("invalid input type")
        check_inputs(len(texts))
        return list(texts)


class EmbeddingsRequest(AdapterFields):
    """The body of `/api/embeddings`, for older clients."""

    model: Name = ""
    prompt: str = ""
    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: Any = None

    def request(self) -> Embed:
        return Embed(
            inputs=[self.prompt] if self.prompt else [], truncate=False, normalize=False, lora=self.adapters
        )


class EmbedFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply of `/api/embed` without its vectors. Durations are in nanoseconds.

    `truncated` and `warnings` are Puna's own: tokens cut from texts that were too long, and sentences about
    ignored options or slow kernels.
    """

    model: str
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    truncated: int = 0
    warnings: Sequence[str] = []


class EmbedReply(EmbedFacts, frozen=True, omit_defaults=True, kw_only=True):
    """The reply of `/api/embed`, which is sent in pieces and never complete in memory."""

    embeddings: list[list[float]]


def routes(backend: Service) -> list[Route]:
    async def embed(body: EmbedRequest) -> ASGIApp:
        """Embed texts as vectors."""
        wanted = body.request()
        found = await embeddings.embed(backend, _order(backend, body), wanted)
        vectors = (embeddings.floats(vector.vector) for vector in found.vectors)
        return ListReply(_facts(body.model, found), "embeddings", vectors)

    async def old_embeddings(body: EmbeddingsRequest) -> Response:
        """Embed one text as a vector, for older clients."""
        if not body.model.strip():
            raise RequestError("model is required")
        order = _order(backend, body)
        try:
            found = await embeddings.embed(backend, order, body.request())
        except (ContextLengthError, UnavailableError, EmbeddingError) as error:
            # Clients of this endpoint expect status 500 for a text that cannot be embedded.
            raise GenerationError(str(error)) from error
        vector = embeddings.floats(found.vectors[0].vector) if found.vectors else []
        return json_reply({"embedding": vector, **({"warnings": found.warnings} if found.warnings else {})})

    return [
        *_rerank(backend),
        body_route("/api/embed", EmbedRequest, embed, gives=EmbedReply),
        body_route("/api/embeddings", EmbeddingsRequest, old_embeddings),
    ]


def _order(backend: Service, body: EmbedRequest | EmbeddingsRequest) -> LoadRequest:
    keep_s = keep_alive_s(body.keep_alive)
    return backend.order(embeddings.find(backend, body.model), body.options, keep_s, body.ignored)


def _facts(name: str, found: Vectors) -> EmbedFacts:
    return EmbedFacts(
        model=name,
        total_duration=found.total_duration,
        load_duration=found.load_duration,
        prompt_eval_count=found.tokens,
        truncated=sum(vector.truncated for vector in found.vectors),
        warnings=found.warnings,
    )


class OllamaRerankRequest(RerankRequest):
    """The body of `/api/rerank`."""

    options: dict[str, Any] = Field(default_factory=dict)
    keep_alive: Any = None


def _rerank(backend: Service) -> list[Route]:
    async def rank(body: OllamaRerankRequest) -> Response:
        """Rank documents by how well they answer a query."""
        body.request()
        keep_s = keep_alive_s(body.keep_alive)
        order = backend.order(embeddings.find(backend, body.model), body.options, keep_s, body.ignored)
        reply, found = await rerank(backend, order, body)
        timings = {"total_duration": found.total_duration, "load_duration": found.load_duration}
        return json_reply(reply | timings | {"prompt_eval_count": found.tokens})

    return [body_route("/api/rerank", OllamaRerankRequest, rank)]
