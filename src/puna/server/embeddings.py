"""`/api/embed`, `/api/embeddings` and `/v1/embeddings`: vectors of texts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from puna.errors import EmbeddingError, GenerationError, ModelNotFoundError, RequestError, UnavailableError
from puna.runner.protocol import Embedded
from puna.server.backend import Backend, Order
from puna.server.decoding import read
from puna.server.embeddings_wire import (
    EmbeddingsRequest,
    EmbedReply,
    EmbedRequest,
    Input,
    OpenAIEmbeddingRequest,
    encoded,
    floats,
)
from puna.server.replies import json_reply
from puna.server.routing import route
from puna.server.settings import keep_alive_s
from puna.store import StoredModel


def routes(backend: Backend) -> list[Route]:
    async def embed(request: Request) -> Response:
        body = await read(request, EmbedRequest)
        inputs = body.inputs
        order = _order(backend, _find(backend, body.model), body.options, body.keep_alive, body.truncate)
        found = await _embed(backend, order, inputs, dimensions=body.dimensions)
        return json_reply(_native(body.model, found))

    async def embeddings(request: Request) -> Response:
        body = await read(request, EmbeddingsRequest)
        if not body.model.strip():
            raise RequestError("model is required")
        model = _find(backend, body.model)
        order = _order(backend, model, body.options, body.keep_alive, truncate=False)
        inputs = [body.prompt] if body.prompt else []
        try:
            found = await _embed(backend, order, inputs, normalize=False)
        except (RequestError, UnavailableError, EmbeddingError) as error:
            # Status 500, whatever it is that cannot be embedded: what clients of this endpoint know.
            raise GenerationError(str(error)) from error
        return json_reply({"embedding": floats(found.vectors[0].vector) if found.vectors else []})

    async def openai(request: Request) -> Response:
        body = await read(request, OpenAIEmbeddingRequest)
        inputs, encoding = body.inputs, body.encoding
        order = _order(backend, _find(backend, body.model), {}, None)
        found = await _embed(backend, order, inputs, dimensions=body.dimensions)
        return json_reply(_openai(body.model, found, encoding))

    return [
        route("/api/embed", embed, "POST"),
        route("/api/embeddings", embeddings, "POST"),
        route("/v1/embeddings", openai, "POST"),
    ]


@dataclass(frozen=True)
class _Found:
    """Vectors in the order of their texts; durations in nanoseconds, from the arrival of the request."""

    vectors: Sequence[Embedded] = ()
    total_duration: int = 0
    load_duration: int = 0

    @property
    def tokens(self) -> int:
        return sum(vector.prompt_eval_count for vector in self.vectors)


def _find(backend: Backend, name: str) -> StoredModel:
    """The model a request names, with the errors that clients of these endpoints know."""
    if not name.strip():
        raise ModelNotFoundError("model '' not found")
    try:
        return backend.find(name)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f'model "{name}" not found, try pulling it first') from error


def _order(
    backend: Backend, model: StoredModel, options: dict[str, Any], keep_alive: Any, truncate: bool = True
) -> Order:
    return Order(
        model=model,
        options=backend.options(model, options),
        keep_alive_s=keep_alive_s(keep_alive),
        truncate=truncate,
    )


async def _embed(
    backend: Backend, order: Order, inputs: Sequence[Input], *, dimensions: int = 0, normalize: bool = True
) -> _Found:
    """Vectors of `inputs`; without any, the model is loaded and that is all."""
    if not inputs:
        await backend.load(order)
        return _Found()
    with backend.metrics.generation(order.model.name, order.arrived_ns) as watched:
        async with backend.scheduler.use(
            order.model, backend.plan(order.options), order.keep_alive_s
        ) as runner:
            watched.loaded()
            loaded_ns = time.perf_counter_ns()
            vectors = await runner.embed(
                inputs, truncate=order.truncate, normalize=normalize, dimensions=dimensions
            )
            watched.embedded(vectors)
    return _Found(
        vectors,
        total_duration=time.perf_counter_ns() - order.arrived_ns,
        load_duration=max(loaded_ns - order.arrived_ns, 1),
    )


def _native(name: str, found: _Found) -> EmbedReply:
    return EmbedReply(
        model=name,
        embeddings=[floats(vector.vector) for vector in found.vectors],
        total_duration=found.total_duration,
        load_duration=found.load_duration,
        prompt_eval_count=found.tokens,
        truncated=sum(vector.truncated for vector in found.vectors),
    )


def _openai(name: str, found: _Found, encoding: str) -> dict[str, Any]:
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "embedding": encoded(vector.vector, encoding), "index": index}
            for index, vector in enumerate(found.vectors)
        ],
        "model": name,
        "usage": {"prompt_tokens": found.tokens, "total_tokens": found.tokens},
    }
