"""Embeddings of texts, and rankings of documents by a query, for the endpoints of all APIs."""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec.structs

from puna.chat.templates.author import Author
from puna.errors import ModelNotFoundError, RequestError
from puna.protocol import Embed, Embedded
from puna.server.http.bodies import MAX_INPUTS, Name
from puna.server.jobs.own_fields import AdapterFields
from puna.server.jobs.service import LoadRequest, Service, warnings
from puna.server.jobs.turns import run_parser
from puna.store import StoredModel


def check_inputs(count: int) -> None:
    """Raise RequestError for more texts than one request may have."""
    if count > MAX_INPUTS:
        raise RequestError(f"at most {MAX_INPUTS:,} texts can be embedded at once, not {count:,}")


@dataclass(frozen=True)
class Vectors:
    """Vectors in the order of their texts. Durations are in nanoseconds, from the arrival of the request."""

    vectors: Sequence[Embedded] = ()
    total_duration: int = 0
    load_duration: int = 0
    warnings: Sequence[str] = ()

    @property
    def tokens(self) -> int:
        return sum(vector.prompt_eval_count for vector in self.vectors)


def find(backend: Service, name: str) -> StoredModel:
    """Return the model `name`. Raises the errors that clients of these endpoints know."""
    if not name.strip():
        raise ModelNotFoundError("model '' not found")
    try:
        return backend.find(name)
    except ModelNotFoundError as error:
        raise ModelNotFoundError(f'model "{name}" not found, try pulling it first') from error


async def embed(backend: Service, order: LoadRequest, request: Embed) -> Vectors:
    """Return the vectors of the inputs of `request`; without inputs, only load the model."""
    if not request.inputs:
        return Vectors(warnings=await backend.load(order))
    inputs = request.inputs
    if request.query is None and order.model.template:
        author = Author.of(order.model)
        inputs = await run_parser(lambda: author.framed(request.inputs))
    with (
        backend.metrics.observation(order.model.name, order.arrived_ns) as observation,
        backend.requests.running(order.model.name, order.arrived_ns) as running,
    ):
        async with contextlib.AsyncExitStack() as held:
            with running.waiting():
                runner = await held.enter_async_context(backend.runner(order, priority=request.priority))
            observation.loaded()
            running.loaded()
            loaded_ns = time.perf_counter_ns()
            num_ctx = backend.num_ctx(order)
            wanted = msgspec.structs.replace(request, inputs=inputs, num_ctx=num_ctx, client=order.client)
            with running.waiting():
                vectors = await runner.embed(wanted)
            observation.embedded(vectors)
    return Vectors(
        vectors,
        total_duration=time.perf_counter_ns() - order.arrived_ns,
        load_duration=max(loaded_ns - order.arrived_ns, 1),
        warnings=warnings(order, runner),
    )


def floats(vector: bytes) -> tuple[float, ...]:
    """Return the values of a vector in little-endian float32."""
    return struct.unpack(f"<{len(vector) // 4}f", vector)


class RerankRequest(AdapterFields):
    """A request to rank documents, in the form of Cohere's and Jina's clients."""

    model: Name = ""
    query: Any = None
    documents: Any = None
    top_n: int | None = None  # number of best documents to return; None: all
    return_documents: bool = False
    truncate: bool = True

    def request(self) -> Embed:
        """Return the request to embed. Raises RequestError."""
        query = _text(self.query, "query")
        if not isinstance(self.documents, list) or not self.documents:
            raise RequestError("documents must be a list of at least one text")
        check_inputs(len(self.documents))
        if self.top_n is not None and self.top_n < 1:
            raise RequestError(f"top_n should be positive, but is {self.top_n}")
        return Embed(inputs=list(self.texts), query=query, truncate=self.truncate, lora=self.adapters)

    @property
    def texts(self) -> list[str]:
        """The texts of the documents. Raises RequestError."""
        return [_text(each, f"documents[{index}]") for index, each in enumerate(self.documents)]


async def rerank(backend: Service, order: LoadRequest, body: RerankRequest) -> tuple[dict[str, Any], Vectors]:
    """Return the reply to `body` and its vectors; equally good documents keep their order."""
    request, texts = body.request(), body.texts
    found = await embed(backend, order, request)
    scores = [floats(one.vector)[0] for one in found.vectors]
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    results = [
        {"index": index, "relevance_score": scores[index]}
        | ({"document": {"text": texts[index]}} if body.return_documents else {})
        for index in best
    ]
    usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    reply: dict[str, Any] = {"model": body.model, "results": results, "usage": usage}
    if truncated := sum(one.truncated for one in found.vectors):
        reply["truncated"] = truncated
    if found.warnings:
        reply["warnings"] = found.warnings
    return reply, found


def _text(given: Any, name: str) -> str:
    """Return a text, or the `text` of an object. Raises RequestError."""
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise RequestError(f"{name} must be a string, or an object with a string 'text'")
    return text
