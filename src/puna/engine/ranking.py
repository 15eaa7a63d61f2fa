"""Scoring documents against a query: what a reranker reads of each pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from puna.engine.embedding import Embedding
from puna.engine.requests import check_size, checked, text_size, too_long
from puna.errors import ContextLengthError, RequestError, UnavailableError

if TYPE_CHECKING:
    from puna.engine.events import Embed
    from puna.engine.sequence import Sink
    from puna.model.load import LoadedModel
    from puna.model.tokenizer import Tokenizer


#: The tokens of a query and of a document, with those around and between them.
Pair = tuple[list[int], list[int]]


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
        pair, excess = _fitted(request, document, loaded, context)
        sequences.append(
            Embedding(
                request=request,
                sink=sink,
                inputs=loaded.model.classifier.inputs(*pair),
                pooling=loaded.ranking,
                whole=not loaded.generates,
                score=loaded.model.classifier.score,
                sample=number,
                truncated=excess,
            )
        )
    return sequences


def _fitted(request: Embed, document: str, loaded: LoadedModel, context: int) -> tuple[Pair, int]:
    """The tokens of a pair, at most `context`, and how many of the document's were dropped."""
    tokenizer, query = loaded.tokenizer, request.query or ""
    check_size(text_size(query) + text_size(document), tokenizer, context)
    pair = _pair(query, document, tokenizer, loaded.rank_template)
    words = tokenizer.encode(document, add_special=False) if _size(pair) > context else []
    dropped = 0
    while (excess := _size(pair) - context) > 0:
        if not request.truncate:
            raise too_long(_size(pair), context)
        if excess > len(words):
            raise ContextLengthError(
                f"the query leaves no room for documents: without one there are {_size(pair) - len(words)} "
                f"tokens, and num_ctx is {context}"
            )
        dropped, words = dropped + excess, words[: len(words) - excess]
        pair = _pair(query, tokenizer.decode(words), tokenizer, loaded.rank_template)
    checked(pair[0] + pair[1], tokenizer)
    return pair, dropped


def _size(pair: Pair) -> int:
    return sum(map(len, pair))


def _pair(query: str, document: str, tokenizer: Tokenizer, template: str | None) -> Pair:
    """As the model was trained to see a query and a document; a template makes one text of them."""
    if template is not None:
        before, mark, after = template.partition("{document}")
        return tokenizer.encode(
            before.replace("{query}", query) + (mark and document) + after.replace("{query}", query),
            add_special=False,
        ), []
    begin = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    end = [tokenizer.eos_id] if tokenizer.add_eos and tokenizer.eos_id is not None else []
    # RoBERTa's kind has two separators between the texts.
    between = end * 2 if begin and tokenizer.token(begin[0]) == "<s>" else end
    first, second = (tokenizer.encode(t, add_special=False, parse_special=False) for t in (query, document))
    return begin + first + between, second + end
