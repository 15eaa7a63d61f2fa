"""Heads beside a model's output: classifiers of rerankers, and heads that predict further tokens."""

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
    """What the options of a model say about its classifier."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def labels(self) -> int: ...


class Classifier(Module):
    """A linear, its hyperbolic tangent and a second linear, as in RoBERTa; or the second alone."""

    options: ClassifierOptions
    dense: Linear | None = weight("cls", "hidden_size", "hidden_size", optional=True)
    norm: LayerNorm | None = weight("cls.norm", "hidden_size", optional=True)
    output: Linear = weight("cls.output", "labels", "hidden_size")

    def inputs(self, query: list[int], document: list[int]) -> list[Input]:
        """What is read of a pair, of the tokens of both with those between and around them."""
        return [Input(token) for token in (*query, *document)]

    def activated(self, hidden: Array) -> Array:
        """[rows, hidden] to the same."""
        return self.ops.softcap(hidden, 1.0)

    def forward(self, hidden: Array) -> Array:
        """Logits [rows, labels] of pooled hidden states [rows, hidden]."""
        if self.dense is not None:
            hidden = self.activated(self.dense(hidden))
        return self.output(hidden if self.norm is None else self.norm(hidden))

    def score(self, hidden: NDArray[np.floating]) -> float:
        """The probability, 0 to 1, that a document answers the query: `hidden` [hidden] is of both.

        It is the sigmoid of the only logit, or the first's share in the softmax of two.
        """
        logits = self.ops.numpy(self.forward(self.ops.array(hidden.astype(np.float32)[None])))[0].tolist()
        margin = logits[0] - (logits[1] if len(logits) > 1 else 0.0)
        return 1 / (1 + math.exp(min(-margin, 700.0)))  # a NaN stays one


class GeluClassifier(Classifier):
    """With a GELU instead of the hyperbolic tangent (ModernBERT)."""

    def activated(self, hidden: Array) -> Array:
        return self.ops.gelu(hidden)


class DirectClassifier(Classifier):
    """One linear and its hyperbolic tangent: what llama.cpp's converter keeps of the first Jina rerankers."""

    output: Linear = weight("cls", "labels", "hidden_size")
    dense = norm = None

    def forward(self, hidden: Array) -> Array:
        return self.activated(self.output(hidden))


def classifier_of(options: ClassifierOptions) -> type[Classifier] | None:
    """The classifier of a model, if it is a reranker."""
    return Classifier if options.labels else None


class PredictionHead(Module):
    """A module of multi-token prediction (DeepSeek-AI, arXiv:2412.19437, section 2.2).

    What the model, or the head before this one, made of a position is joined with the embedding of the token
    after it, and goes through a layer like the model's own. What a head lacks it shares with the model.
    """

    layer: TransformerLayer  # of the same number; the model's cache has its keys and values
    joint: Linear = weight("nextn.eh_proj", "hidden_size", "joined_size")
    embedding_norm: RMSNorm = weight("nextn.enorm", "hidden_size")
    hidden_norm: RMSNorm = weight("nextn.hnorm", "hidden_size")
    embedding: Embedding = weight("nextn.embed_tokens", "vocab_size", "hidden_size", optional=True)
    norm: RMSNorm = weight("nextn.shared_head_norm|layer_output_norm", "hidden_size", optional=True)
    output: Linear = weight("nextn.shared_head_head", "vocab_size", "hidden_size", optional=True)

    def share(self, layer: TransformerLayer, embedding: Embedding, norm: RMSNorm, output: Linear) -> None:
        """Use the model's own for what the file has none of."""
        self.layer = layer
        self.embedding = self.embedding or embedding
        self.norm = self.norm or norm
        self.output = self.output or output

    def forward(self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None) -> Array:
        """Before the last norm, of the rows `batch.outputs`: [wanted, hidden].

        Row t of the batch is a token at its position, and row t of `hidden` is of the position before.
        """
        embedded = self.embedding_norm(self.embedding(batch.tokens))
        joined = self.joint(self.ops.join([embedded, self.hidden_norm(hidden)]))
        return self.layer.forward(joined, batch, cache, rope, batch.outputs)
