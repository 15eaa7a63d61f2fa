"""Routes of vLLM for pairs of texts and for vectors, llama.cpp's for vectors, and paths of `/v1/rerank`."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from puna.chat.templates.author import Author
from puna.errors import RequestError
from puna.protocol import Embed
from puna.server.http.bodies import Name, body_route
from puna.server.http.replies import ListReply, json_reply
from puna.server.jobs import embeddings
from puna.server.jobs.embeddings import RerankRequest, Vectors, check_inputs, floats, rerank
from puna.server.jobs.own_fields import AdapterFields, texts_or_tokens
from puna.server.jobs.service import LoadRequest, Service
from puna.server.jobs.turns import run_parser
from puna.server.llamaserver.wire import wanted_model

_QUERY: Final = ("model",)

#: Maximum `embd_normalize`, and the largest value that its 0 gives.
_MAX_NORM: Final = 64
_LARGEST: Final = 32760.0


class PoolingFields(AdapterFields):
    """The common fields of scores and vectors."""

    model: Name = ""
    truncate_prompt_tokens: int | None = None  # -1: as many as fit; None: refuse what does not fit

    @property
    def truncate(self) -> bool:
        return self.truncate_prompt_tokens is not None

    def options(self) -> dict[str, Any]:
        """Return the options for the model. Raises RequestError."""
        most = self.truncate_prompt_tokens
        if most is not None and most < 1 and most != -1:
            raise RequestError(f"truncate_prompt_tokens must be positive, or -1, not {most}")
        return {} if most in (None, -1) else {"num_ctx": most}


class ScoreBody(PoolingFields):
    """Pairs of texts: the first with each of the second, or as many of both. Each field has three names."""

    text_1: Any = None
    text_2: Any = None
    queries: Any = None
    documents: Any = None
    data_1: Any = None
    data_2: Any = None

    def pairs(self) -> list[tuple[str, str]]:
        """Return the pairs. Raises RequestError."""
        first = self._texts("text_1", "queries", "data_1")
        second = self._texts("text_2", "documents", "data_2")
        check_inputs(len(second))
        if len(first) not in (1, len(second)):
            raise RequestError(
                f"{len(first)} and {len(second)} texts are no pairs: give one first text, or as many of both"
            )
        return list(zip(first * len(second) if len(first) == 1 else first, second, strict=True))

    def _texts(self, *names: str) -> list[str]:
        given = [getattr(self, name) for name in names if getattr(self, name) is not None]
        texts = [given[0]] if given and isinstance(given[0], str) else given[0] if given else None
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
            raise RequestError(f"{names[0]} must be a text, or a list of at least one text")
        if len(given) > 1:
            raise RequestError(f"{', '.join(names)} are names of the same field: give one of them")
        return texts


class PoolingBody(PoolingFields):
    input: Any = None
    dimensions: int = 0
    normalize: bool = True
    encoding_format: Literal["float", "base64"] = "float"

    def request(self) -> Embed:
        """Return the request to embed. Raises RequestError."""
        inputs = texts_or_tokens(self.input)
        if inputs is None:
            raise RequestError("input must be a text, token ids, or a list of either, and not empty")
        check_inputs(len(inputs))
        return Embed(
            inputs=inputs,
            dimensions=self.dimensions,
            normalize=self.normalize,
            truncate=self.truncate,
            lora=self.adapters,
        )


class EmbeddingBody(AdapterFields):
    """The body of llama.cpp's `/embedding`; `input` is another name of `content`.

    `embd_normalize` is the norm by which vectors are divided: 2 the Euclidean, 1 the sum, others accordingly;
    0 scales the largest value to 32,760, and -1 leaves them as they are.
    """

    model: Name = ""
    content: Any = None
    input: Any = None
    embd_normalize: int = 2

    def request(self) -> Embed:
        """Return the request to embed. Raises RequestError."""
        if not -1 <= self.embd_normalize <= _MAX_NORM:
            raise RequestError(f"embd_normalize must be from -1 to {_MAX_NORM}, not {self.embd_normalize}")
        inputs = texts_or_tokens(self.content if self.input is None else self.input)
        if inputs is None:
            raise RequestError("content must be a text, token ids, or a list of either, and not empty")
        check_inputs(len(inputs))
        return Embed(inputs=inputs, normalize=self.embd_normalize == 2, truncate=False, lora=self.adapters)


class RowsOfText(msgspec.Struct):
    """The only row of a text, whose tokens are pooled."""

    index: int
    embedding: list[list[float]]


class PoolingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class Score(msgspec.Struct):
    index: int
    object: Literal["score"]
    score: float


class Scores(msgspec.Struct):
    """Scores of pairs: the probability of a reranker, or the cosine of two embeddings."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Score]
    usage: PoolingUsage


class PooledVector(msgspec.Struct):
    index: int
    object: Literal["pooling"]
    data: list[float] | str


class Pooled(msgspec.Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PooledVector]
    usage: PoolingUsage


def routes(backend: Service) -> list[Route]:
    async def score(body: ScoreBody) -> Response:
        """Score pairs of texts with a reranker or an embedding model, in the form of vLLM."""
        pairs, options, name = body.pairs(), body.options(), wanted_model(backend, body.model)
        model = embeddings.find(backend, name)
        order = backend.order(model, options, ignored=body.ignored)
        author = Author.of(model)
        ranks = "rerank" in await run_parser(lambda: author.capabilities)
        values, tokens = await (_ranked if ranks else _cosines)(backend, order, body, pairs)
        data = [Score(index, "score", value) for index, value in enumerate(values)]
        return json_reply(
            Scores(_id("score"), "list", int(time.time()), name, data, PoolingUsage(tokens, tokens))
        )

    async def pool(body: PoolingBody) -> ListReply:
        """Embed texts as vectors in the form of vLLM."""
        wanted, options, name = body.request(), body.options(), wanted_model(backend, body.model)
        order = backend.order(embeddings.find(backend, name), options, ignored=body.ignored)
        found = await embeddings.embed(backend, order, wanted)
        usage = PoolingUsage(found.tokens, found.tokens)
        head = {
            "id": _id("pool"),
            "object": "list",
            "created": int(time.time()),
            "model": name,
            "usage": usage,
        }
        encode = _in_base64 if body.encoding_format == "base64" else floats
        data = (
            {"index": index, "object": "pooling", "data": encode(one.vector)}
            for index, one in enumerate(found.vectors)
        )
        return ListReply(head, "data", data)

    async def embed(body: EmbeddingBody) -> ListReply:
        """Embed texts as vectors in the form of llama.cpp's server."""
        wanted, name = body.request(), wanted_model(backend, body.model)
        order = backend.order(embeddings.find(backend, name), {}, ignored=body.ignored)
        found = await embeddings.embed(backend, order, wanted)
        rows = (
            RowsOfText(index, [_normalized(floats(one.vector), body.embd_normalize)])
            for index, one in enumerate(found.vectors)
        )
        return ListReply(None, "", rows)

    async def rank(body: RerankRequest) -> Response:
        """Rank documents by how well they answer a query, like `/v1/rerank`."""
        body.request()
        name = wanted_model(backend, body.model)
        order = backend.order(embeddings.find(backend, name), {}, ignored=body.ignored)
        reply, _ = await rerank(backend, order, body)
        return json_reply(reply | {"model": name})

    return [
        *(body_route(path, ScoreBody, score, gives=Scores, query=_QUERY) for path in ("/score", "/v1/score")),
        *(
            body_route(path, EmbeddingBody, embed, gives=list[RowsOfText], query=_QUERY)
            for path in ("/embedding", "/embeddings")
        ),
        body_route("/pooling", PoolingBody, pool, gives=Pooled, query=_QUERY),
        *(
            body_route(path, RerankRequest, rank, query=_QUERY)
            for path in ("/rerank", "/reranking", "/v1/reranking")
        ),
    ]


async def _ranked(
    backend: Service, order: LoadRequest, body: ScoreBody, pairs: Sequence[tuple[str, str]]
) -> tuple[list[float], int]:
    """Return a reranker's score of each pair, and how many tokens it read."""
    places: dict[str, list[int]] = {}  # by query
    for place, (query, _) in enumerate(pairs):
        places.setdefault(query, []).append(place)

    async def ranked(query: str) -> Vectors:
        documents: list[str | list[int]] = [pairs[place][1] for place in places[query]]
        wanted = Embed(inputs=documents, query=query, truncate=body.truncate, lora=body.adapters)
        return await embeddings.embed(backend, order, wanted)

    scores = [0.0] * len(pairs)
    tokens = 0
    found = await asyncio.gather(*(ranked(query) for query in places))
    for own, vectors in zip(places.values(), found, strict=True):
        tokens += vectors.tokens
        for place, one in zip(own, vectors.vectors, strict=True):
            scores[place] = floats(one.vector)[0]
    return scores, tokens


async def _cosines(
    backend: Service, order: LoadRequest, body: ScoreBody, pairs: Sequence[tuple[str, str]]
) -> tuple[list[float], int]:
    """Return the cosine of the embeddings of each pair, and how many tokens were read."""
    texts: list[str | list[int]] = list(dict.fromkeys(text for pair in pairs for text in pair))
    wanted = Embed(inputs=texts, truncate=body.truncate, lora=body.adapters)
    found = await embeddings.embed(backend, order, wanted)
    vectors = {text: floats(one.vector) for text, one in zip(texts, found.vectors, strict=True)}
    cosines = [
        sum(one * other for one, other in zip(vectors[first], vectors[second], strict=True))
        for first, second in pairs
    ]
    return cosines, found.tokens


def _normalized(vector: Sequence[float], norm: int) -> list[float]:
    """Return a vector by `embd_normalize`; one of zeros stays as it is."""
    largest = max(map(abs, vector))
    if norm in (-1, 2) or not largest:  # as the model gives it, or normalised there
        return list(vector)
    if norm == 0:
        return [value * _LARGEST / largest for value in vector]
    # Powers of shares of the largest value neither overflow nor vanish.
    length = largest * sum((abs(value) / largest) ** norm for value in vector) ** (1 / norm)
    return [value / length for value in vector]


def _id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def _in_base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()
