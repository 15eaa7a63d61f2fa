"""Heads on a model's output: reranker classifiers and multi-token prediction."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np

from puna.batch import BatchArrays, Input
from puna.kvcache.cache import Cache
from puna.nn.layers import Embedding, LayerNorm, Linear, RMSNorm
from puna.nn.module import Module, weight
from puna.nn.transformer_layer import TransformerLayer
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ClassifierOptions(Protocol):
    """Model options that its classifier reads."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def labels(self) -> int: ...


class Classifier(Module):
    """Linear, tanh, linear, as in RoBERTa; or the second linear alone."""

    options: ClassifierOptions
    dense: Linear | None = weight("cls", "hidden_size", "hidden_size", optional=True)
    norm: LayerNorm | None = weight("cls.norm", "hidden_size", optional=True)
    output: Linear = weight("cls.output", "labels", "hidden_size")

    def inputs(self, query: list[int], document: list[int]) -> list[Input]:
        """Return the inputs for a pair; both token lists include their special tokens."""
        return [Input(token) for token in (*query, *document)]

    def activated(self, hidden: Array) -> Array:
        """Map [rows, hidden] to the same shape."""
        return self.ops.softcap(hidden, 1.0)

    def forward(self, hidden: Array) -> Array:
        """Return the logits [rows, labels] of pooled hidden states [rows, hidden]."""
        if self.dense is not None:
            hidden = self.activated(self.dense(hidden))
        return self.output(hidden if self.norm is None else self.norm(hidden))

    def score(self, hidden: NDArray[np.floating]) -> float:
        """Return the probability, 0 to 1, that a document answers the query.

        It is the sigmoid of a single logit, or the first logit's share in a softmax of two. `hidden` [hidden]
        is the state of the pair.
        """
        logits = self.ops.numpy(self.forward(self.ops.array(hidden.astype(np.float32)[None])))[0].tolist()
        margin = logits[0] - (logits[1] if len(logits) > 1 else 0.0)
        return 1 / (1 + math.exp(min(-margin, 700.0)))  # NaN stays NaN


class GeluClassifier(Classifier):
    """Classifier with GELU instead of tanh (ModernBERT)."""

    def activated(self, hidden: Array) -> Array:
        return self.ops.gelu(hidden)


class DirectClassifier(Classifier):
    """One linear and its tanh: all that llama.cpp's converter keeps of the first Jina rerankers."""

    output: Linear = weight("cls", "labels", "hidden_size")
    dense = norm = None

    def forward(self, hidden: Array) -> Array:
        return self.activated(self.output(hidden))


def classifier_of(options: ClassifierOptions) -> type[Classifier] | None:
    """Return the classifier class of a reranker, or None."""
    return Classifier if options.labels else None


class PredictionHead(Module):
    """Module of multi-token prediction (DeepSeek-AI, arXiv:2412.19437, section 2.2).

    It joins the hidden state of a position (from the model or the previous head) with the embedding of the
    next token, and runs a layer like the model's own. For tensors that the file lacks it uses the model's.
    """

    layer: TransformerLayer  # numbered like this head; the model's cache holds its keys and values
    joint: Linear = weight("nextn.eh_proj", "hidden_size", "joined_size")
    embedding_norm: RMSNorm = weight("nextn.enorm", "hidden_size")
    hidden_norm: RMSNorm = weight("nextn.hnorm", "hidden_size")
    embedding: Embedding = weight("nextn.embed_tokens", "vocab_size", "hidden_size", optional=True)
    norm: RMSNorm = weight("nextn.shared_head_norm|layer_output_norm", "hidden_size", optional=True)
    output: Linear = weight("nextn.shared_head_head", "vocab_size", "hidden_size", optional=True)

    def share(self, layer: TransformerLayer, embedding: Embedding, norm: RMSNorm, output: Linear) -> None:
        """Use the model's tensors where the file has none for this head."""
        self.layer = layer
        self.embedding = self.embedding or embedding
        self.norm = self.norm or norm
        self.output = self.output or output

    def forward(self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None) -> Array:
        """Return hidden states [outputs, hidden] of the rows `batch.outputs`, before the final norm.

        Row t of the batch is a token at its position; row t of `hidden` belongs to the position before it.
        """
        embedded = self.embedding_norm(self.embedding(batch.tokens))
        joined = self.joint(self.ops.join([embedded, self.hidden_norm(hidden)]))
        return self.layer.forward(joined, batch, cache, rope, batch.outputs)
