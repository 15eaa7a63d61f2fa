"""Embedding a text, and scoring documents against a query: the wanted hidden states, and the result made
of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from puna.batch import Input
from puna.engine.requests import check_size, checked, text_size, tokenised, too_long
from puna.engine.sequence import Sequence, Sink
from puna.errors import ContextLengthError, EmbeddingError, RequestError, UnavailableError
from puna.model.pooling import Pooling
from puna.protocol import Embed, Embedded

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from puna.engine.prefix_cache import PrefixEntry
    from puna.model.load import LoadedModel
    from puna.tokenizer import Tokenizer

#: A vector shorter than this is not made longer by dividing it by its length.
_SHORTEST = 1e-12


@dataclass(eq=False, kw_only=True)
class EmbeddingInput(Sequence):
    """One input of a request to embed. Its hidden states come batch by batch, and are not kept."""

    request: Embed
    pooling: Pooling
    whole: bool = False  # all inputs are to be in one batch: each of them sees all
    truncated: int = 0  # tokens that did not fit
    score: Callable[[NDArray[np.float64]], float] | None = None  # what is asked for instead of the vector

    def __post_init__(self) -> None:
        if self.whole:
            self.inputs[0] = replace(self.inputs[0], same_batch=len(self.inputs) - 1)
        super().__post_init__()

    @property
    def evaluates_all(self) -> bool:
        # What comes from the cache has keys and values, but no hidden states.
        return self.whole or self.pooling is not Pooling.LAST

    @property
    def generates(self) -> bool:
        return False

    def wanted(self, count: int) -> range:
        if self.pooling is Pooling.LAST:
            return super().wanted(count)
        return range(count if self.pooling is Pooling.MEAN else self.evaluated == 0)

    def start(self, entry: PrefixEntry) -> None:
        super().start(entry)
        # In float64, so that the batches it came in do not show in the result.
        self._pooled: NDArray[np.float64] | None = None

    def take(self, states: NDArray[np.float32]) -> None:
        """The hidden states [rows, hidden] of what was last `wanted`, maybe none."""
        if len(states):
            added = states.sum(axis=0, dtype=np.float64)
            self._pooled = added if self._pooled is None else self._pooled + added

    def finish(self) -> None:
        """Give the client the vector, now that all inputs are evaluated. Raises `EmbeddingError`."""
        assert self._pooled is not None, "the last input of all was wanted, or one before it"
        vector = self._pooled / (self.prompt_length if self.pooling is Pooling.MEAN else 1)
        if self.score is not None:
            vector = np.array([self.score(vector)])
        if not np.isfinite(vector).all():
            raise EmbeddingError("embedding contains NaN or Inf values")
        if 0 < self.request.dimensions < len(vector):
            vector = vector[: self.request.dimensions]
        if self.request.normalize and self.score is None:
            vector = vector / max(float(np.linalg.norm(vector)), _SHORTEST)
        self.sink(
            Embedded(
                id=self.id,
                vector=vector.astype("<f4").tobytes(),
                prompt_eval_count=self.prompt_length,
                cached=self.cached,
                truncated=self.truncated,
                sample=self.sample,
            )
        )


def prepare_embeddings(
    request: Embed, sink: Sink, tokenizer: Tokenizer, context: int, pooling: Pooling | None, *, whole: bool
) -> list[EmbeddingInput]:
    """A sequence for each input of `request`; `pooling` is the model's, `whole` if it reads a text at once.

    Raises `RequestError`, `UnavailableError` for a model that cannot embed, and `ContextLengthError` when an
    input is too long and must not be cut.
    """
    if request.pooling is not None:
        try:
            pooling = Pooling(request.pooling)
        except ValueError:
            known = ", ".join(Pooling)
            raise RequestError(f"pooling '{request.pooling}' is not known; there are {known}") from None
    if pooling is None:
        raise UnavailableError("this model does not support embeddings")
    sequences = []
    for number, text in enumerate(request.inputs):
        tokens = checked(tokenised(text, tokenizer, context), tokenizer)
        excess = len(tokens) - context
        if excess > 0:
            if not request.truncate:
                raise too_long(len(tokens), context)
            tokens = _cut(tokens, context, tokenizer if isinstance(text, str) else None)
        sequences.append(
            EmbeddingInput(
                request=request,
                sink=sink,
                inputs=[Input(token) for token in tokens],
                pooling=pooling,
                whole=whole,
                sample=number,
                truncated=max(excess, 0),
            )
        )
    return sequences


def _cut(tokens: list[int], context: int, tokenizer: Tokenizer | None) -> list[int]:
    """The first of `tokens`, at most `context`; the tokens that `tokenizer` frames a text with stay."""
    end = int(tokenizer is not None and tokenizer.add_eos and tokenizer.eos_id is not None)
    begin = int(tokenizer is not None and tokenizer.add_bos and tokenizer.bos_id is not None)
    if context <= begin + end:
        raise ContextLengthError("input after truncation exceeds maximum context length")
    return tokens[: context - end] + tokens[len(tokens) - end :]


#: The tokens of a query and of a document, with those around and between them.
Pair = tuple[list[int], list[int]]


def prepare_ranking(request: Embed, sink: Sink, loaded: LoadedModel, context: int) -> list[EmbeddingInput]:
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
            EmbeddingInput(
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
