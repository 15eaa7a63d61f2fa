"""Heads that predict the tokens after the next one, in models that were trained with them."""

from __future__ import annotations

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache
from puna.nn.layers import Embedding, Linear, RMSNorm
from puna.nn.module import Module, weight
from puna.nn.transformer_layer import Layer
from puna.ops import Array, Rope


class PredictionHead(Module):
    """A module of multi-token prediction (DeepSeek-AI, arXiv:2412.19437, section 2.2).

    What the model, or the head before this one, made of a position is joined with the embedding of the token
    after it, and goes through a layer like the model's own. What a head lacks it shares with the model.
    """

    layer: Layer  # of the same number; the model's cache has its keys and values
    joint: Linear = weight("nextn.eh_proj", "hidden_size", "joined_size")
    embedding_norm: RMSNorm = weight("nextn.enorm", "hidden_size")
    hidden_norm: RMSNorm = weight("nextn.hnorm", "hidden_size")
    embedding: Embedding = weight("nextn.embed_tokens", "vocab_size", "hidden_size", optional=True)
    norm: RMSNorm = weight("nextn.shared_head_norm|layer_output_norm", "hidden_size", optional=True)
    output: Linear = weight("nextn.shared_head_head", "vocab_size", "hidden_size", optional=True)

    def share(self, layer: Layer, embedding: Embedding, norm: RMSNorm, output: Linear) -> None:
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
