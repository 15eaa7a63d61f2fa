"""Pooling of a text's hidden states into its embedding or score."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from puna.errors import UnsupportedModelError
from puna.gguf.metadata import scalar, table_rows

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Pooling(StrEnum):
    """Hidden states of a text that its embedding or score is made from."""

    MEAN = "mean"  # all, equally
    CLS = "cls"  # the first
    LAST = "last"  # the last


#: By `pooling_type`. For 0, none, see `read_pooling`. _RANK is a reranker's score, not an embedding.
_TYPES = {0: Pooling.LAST, 1: Pooling.MEAN, 2: Pooling.CLS, 3: Pooling.LAST}
_RANK = 4

#: The rows of the first are the classes; if both exist, the second is a layer before it.
_CLASSES = ("cls.output.weight", "cls.weight")


def read_pooling(file: GGUFFile, *, generates: bool) -> Pooling | None:
    """Return how a model embeds texts; None if it cannot.

    For a model that `generates` and states no pooling this is the last hidden state, the only one that
    depends on the whole text, as in Ollama with llama.cpp, and in vLLM. In an encoder all do.
    """
    if is_reranker(file):
        return None
    kind = scalar(file, "pooling_type", 0)
    return Pooling.MEAN if kind == 0 and not generates else _TYPES.get(kind)


def is_reranker(file: GGUFFile) -> bool:
    """Whether `file` scores documents. Most encoder files with a classifier state no pooling."""
    kind = file.get("pooling_type")
    return kind == _RANK or (kind is None and any(name in file.tensors for name in _CLASSES))


def read_labels(file: GGUFFile) -> int:
    """Return the classes of a reranker's classifier; 0 if there is none. Raises `UnsupportedModelError`."""
    rows = (table_rows(file, name) for name in _CLASSES) if is_reranker(file) else ()
    labels = next(filter(None, rows), 0)
    names = file.get("classifier.output_labels")
    yes_or_no = names and not isinstance(names, str | int | float) and list(names[:2]) == ["yes", "no"]
    if labels > 1 and not (labels == 2 and yes_or_no):
        raise UnsupportedModelError(
            f"{file.path}: the classifier has {labels} classes; a reranker has one, or 'yes' and 'no' "
            f"('{file.architecture}.classifier.output_labels')"
        )
    return labels


def read_ranking(file: GGUFFile, default: Pooling) -> Pooling | None:
    """Return the pooling that a reranker's classifier reads (default `default`); None for other models."""
    if not read_labels(file):
        return None
    return _TYPES.get(scalar(file, "classifier.pooling_type", 0) or -1, default)
