"""Routes of `/v1/embeddings` and `/v1/rerank`."""

from __future__ import annotations

import base64
from typing import Any, Final

from starlette.responses import Response
from starlette.routing import Route

from puna.errors import RequestError
from puna.protocol import Embed
from puna.server.http.bodies import Name, body_route
from puna.server.http.replies import ListReply, json_reply
from puna.server.jobs import embeddings
from puna.server.jobs.embeddings import RerankRequest, Vectors, check_inputs, rerank
from puna.server.jobs.own_fields import AdapterFields, texts_or_tokens
from puna.server.jobs.service import Service
from puna.server.openai.reply import EmbeddingList, Ranking

_ENCODINGS: Final = ("float", "base64")


class EmbeddingRequest(AdapterFields):
    """The body of `/v1/embeddings`."""

    model: Name = ""
    input: Any = None
    dimensions: int = 0
    encoding_format: str = "float"

    def request(self) -> Embed:
        return Embed(inputs=self.inputs, dimensions=self.dimensions, lora=self.adapters)

    @property
    def inputs(self) -> list[str | list[int]]:
        """The inputs: a text, several, the token ids of one, or those of several. Raises RequestError."""
        given = self.input
        if given is None or given == []:
            raise RequestError("invalid input")
        inputs = texts_or_tokens(given)
        if inputs is None:
            raise RequestError("invalid input type")
        check_inputs(len(inputs))
        return inputs

    @property
    def encoding(self) -> str:
        """The encoding of vectors. Raises RequestError."""
        if (encoding := self.encoding_format.lower()) not in _ENCODINGS:
            raise RequestError(
                f"Invalid value for 'encoding_format' = {self.encoding_format}. "
                f"Supported values: {list(_ENCODINGS)}."
            )
        return encoding


def routes(backend: Service) -> list[Route]:
    async def embed(body: EmbeddingRequest) -> ListReply:
        """Embed texts as vectors in the form of OpenAI's API."""
        encoding, wanted = body.encoding, body.request()
        model = embeddings.find(backend, body.model)
        order = backend.order(model, {}, ignored=body.ignored)
        found = await embeddings.embed(backend, order, wanted)
        return _reply(body.model, found, encoding)

    return [*_rerank(backend), body_route("/v1/embeddings", EmbeddingRequest, embed, gives=EmbeddingList)]


def _reply(name: str, found: Vectors, encoding: str) -> ListReply:
    warnings = {"warnings": found.warnings} if found.warnings else {}
    usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
    data = (
        {"object": "embedding", "embedding": _encoded(vector.vector, encoding), "index": index}
        for index, vector in enumerate(found.vectors)
    )
    return ListReply({"object": "list", "model": name, "usage": usage, **warnings}, "data", data)


def _encoded(vector: bytes, encoding: str) -> str | tuple[float, ...]:
    """Return a vector in base64 or as numbers."""
    return base64.b64encode(vector).decode() if encoding == "base64" else embeddings.floats(vector)


def _rerank(backend: Service) -> list[Route]:
    async def rank(body: RerankRequest) -> Response:
        """Rank documents by how well they answer a query, in the form of Cohere's and Jina's APIs."""
        body.request()
        order = backend.order(embeddings.find(backend, body.model), {}, ignored=body.ignored)
        reply, _ = await rerank(backend, order, body)
        return json_reply(reply)

    return [body_route("/v1/rerank", RerankRequest, rank, gives=Ranking)]
