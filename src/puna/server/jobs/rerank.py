"""Documents in the order of how well they answer a query, for the reranking endpoints of both APIs."""

from __future__ import annotations

from typing import Any

from puna.errors import RequestError
from puna.protocol import Embed
from puna.server.http.limits import Name
from puna.server.jobs import embeddings
from puna.server.jobs.backend import Backend, Order
from puna.server.jobs.checks import check_inputs
from puna.server.jobs.embeddings import Vectors
from puna.server.jobs.own_fields import AdapterFields


class RerankRequest(AdapterFields):
    """What Cohere's and Jina's clients send."""

    model: Name = ""
    query: Any = None
    documents: Any = None
    top_n: int | None = None  # of the best documents; None: all
    return_documents: bool = False
    truncate: bool = True

    def request(self) -> Embed:
        """Raises RequestError."""
        query = _text(self.query, "query")
        if not isinstance(self.documents, list) or not self.documents:
            raise RequestError("documents must be a list of texts, at least one")
        check_inputs(len(self.documents))
        if self.top_n is not None and self.top_n < 1:
            raise RequestError(f"top_n should be positive, but is {self.top_n}")
        return Embed(inputs=list(self.texts), query=query, truncate=self.truncate, lora=self.adapters)

    @property
    def texts(self) -> list[str]:
        """Raises RequestError."""
        return [_text(each, f"documents[{index}]") for index, each in enumerate(self.documents)]


async def rerank(backend: Backend, order: Order, body: RerankRequest) -> tuple[dict[str, Any], Vectors]:
    """The reply to `body`, and what it was made of. Of equally good documents the earlier comes first."""
    request, texts = body.request(), body.texts
    found = await embeddings.embed(backend, order, request)
    scores = [embeddings.floats(one.vector)[0] for one in found.vectors]
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
    """A text, or the text of an object that has one."""
    text = given.get("text") if isinstance(given, dict) else given
    if not isinstance(text, str):
        raise RequestError(f"{name} must be a text, or an object with one as 'text'")
    return text
