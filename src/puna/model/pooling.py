"""How a text's embedding is made of the hidden states of its tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from puna.model.metadata import scalar

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Pooling(StrEnum):
    """Which hidden states count."""

    MEAN = "mean"  # all, equally
    CLS = "cls"  # the first
    LAST = "last"  # the last


#: By `pooling_type`. 0 is none: see `read_pooling`. 4 is the score of a reranker, which is no embedding.
_TYPES = {0: Pooling.LAST, 1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}


def read_pooling(file: GGUFFile, *, generates: bool) -> Pooling | None:
    """What a model's embeddings are; None when it cannot have any.

    Of a model that `generates` and states no pooling, the last hidden state is the only one that has seen the
    whole text, and what Ollama takes with llama.cpp, and vLLM. In an encoder all have.
    """
    kind = scalar(file, "pooling_type", 0)
    return Pooling.MEAN if kind == 0 and not generates else _TYPES.get(kind)
