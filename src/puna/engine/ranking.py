"""Scoring documents against a query: what a reranker reads of each pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puna.batch import Input
from puna.engine.embedding import Embedding
from puna.engine.requests import check_size, checked, text_size, too_long
from puna.errors import ContextLengthError, RequestError, UnavailableError

if TYPE_CHECKING:
    from puna.engine.events import Embed
    from puna.engine.sequence import Sink
    from puna.model.load import LoadedModel
    from puna.model.tokenizer import Tokenizer


def prepare_ranking(request: Embed, sink: Sink, loaded: LoadedModel, context: int) -> list[Embedding]:
    """A sequence for each document of `request`.

    Raises `RequestError`, `UnavailableError` for a model that is no reranker, and `ContextLengthError` when a
    pair is too long and must not be cut, or the query leaves no room for a document.
    """
    if loaded.ranking is None or loaded.model.classifier is None:
        raise UnavailableError("this model does not support reranking: it has no classifier")
    sequences = []
    for number, document in enumerate(request.inputs):
        if not isinstance(document, str):
            raise RequestError("documents to rank must be texts, not tokens")
        tokens, excess = _fitted(request, document, loaded, context)
        sequences.append(
            Embedding(
                request=request,
                sink=sink,
                inputs=[Input(token) for token in tokens],
                pooling=loaded.ranking,
                whole=not loaded.generates,
                score=loaded.model.classifier.score,
                sample=number,
                truncated=excess,
            )
        )
    return sequences


def _fitted(request: Embed, document: str, loaded: LoadedModel, context: int) -> tuple[list[int], int]:
    """The tokens of a pair, at most `context`, and how many of the document's were dropped."""
    tokenizer, query = loaded.tokenizer, request.query or ""
    check_size(text_size(query) + text_size(document), tokenizer, context)
    tokens = _pair(query, document, tokenizer, loaded.rank_template)
    words = tokenizer.encode(document, add_special=False) if len(tokens) > context else []
    dropped = 0
    while (excess := len(tokens) - context) > 0:
        if not request.truncate:
            raise too_long(len(tokens), context)
        if excess > len(words):
            raise ContextLengthError(
                f"the query leaves no room for documents: without one there are {len(tokens) - len(words)} "
                f"tokens, and num_ctx is {context}"
            )
        dropped, words = dropped + excess, words[: len(words) - excess]
        tokens = _pair(query, tokenizer.decode(words), tokenizer, loaded.rank_template)
    return checked(tokens, tokenizer), dropped


def _pair(query: str, document: str, tokenizer: Tokenizer, template: str | None) -> list[int]:
    """As the model was trained to see a query and a document."""
    if template is not None:
        before, mark, after = template.partition("{document}")
        return tokenizer.encode(
            before.replace("{query}", query) + (mark and document) + after.replace("{query}", query),
            add_special=False,
        )
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    end = [tokenizer.eos_id] if tokenizer.add_eos and tokenizer.eos_id is not None else []
    # RoBERTa's kind has two separators between the texts.
    between = end * 2 if begin and tokenizer.token(begin[0]) == "<s>" else end
    first, second = (tokenizer.encode(t, add_special=False, parse_special=False) for t in (query, document))
    return begin + first + between + second + end
