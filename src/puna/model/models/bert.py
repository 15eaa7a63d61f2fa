"""BERT and what was trained like it (BGE, E5, GTE, MiniLM ...): encoders, which make embeddings of texts.

Devlin et al., arXiv:1810.04805. A text is read whole, each token sees all others, and nothing is kept. The
GELU is the exact one, as in the reference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from puna.batch import Batch
from puna.errors import NotSupportedError, UnsupportedModelError
from puna.kvcache.cache import Cache
from puna.model.base import TextModel
from puna.model.layer_cache import WholeText
from puna.model.metadata import flag, invalid, required, table_rows
from puna.model.options import TextOptions
from puna.nn.feed_forward import PlainFeedForward
from puna.nn.layers import Embedding, LayerNorm
from puna.nn.module import WeightSource, blocks, part, weight
from puna.nn.transformer_layer import ResidualNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class BertOptions(TextOptions):
    positions: int  # that there are vectors of: the longest text
    token_types: int  # kinds of text; what is embedded is of the first


class FirstRow:
    """The first row of a table: float32 [columns]."""

    def __init__(self, values: Array) -> None:
        self.values = values

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        table = source.values(f"{name}.weight", shape)
        return None if table is None else cls(source.ops.array(np.ascontiguousarray(table[0])))


class Layer(ResidualNormLayer):
    feed_forward: PlainFeedForward = part()


class Bert(TextModel):
    generates: ClassVar[bool] = False
    options: BertOptions
    token_embedding: Embedding = weight("token_embd", "vocab_size", "hidden_size")
    position_embedding: Embedding = weight("position_embd", "positions", "hidden_size")
    token_type: FirstRow | None = weight("token_types", "token_types", "hidden_size", optional=True)
    embedding_norm: LayerNorm = weight("token_embd_norm", "hidden_size")
    layers: Sequence[Layer] = blocks("blk")

    def hidden(self, batch: Batch, cache: Cache) -> Array:
        hidden = self.token_embedding(batch.tokens) + self.position_embedding(batch.positions)
        if self.token_type is not None:
            hidden = hidden + self.token_type.values
        hidden = self.embedding_norm(hidden)
        for i, layer in enumerate(self.layers):
            last = i == len(self.layers) - 1
            hidden = layer.forward(hidden, batch, cache, None, batch.outputs if last else None)
        return hidden

    def logits(self, hidden: Array) -> Array:
        raise NotSupportedError("BERT embeds texts; it does not predict tokens")

    @classmethod
    def read_options(cls, file: GGUFFile) -> BertOptions:
        if flag(file, "attention.causal", False):
            raise UnsupportedModelError(
                f"{file.path}: 'bert.attention.causal' is true, which is not supported"
            )
        positions = table_rows(file, "position_embd.weight")
        context = required(file, "context_length", max(positions, 1))
        if positions and context > positions:
            raise invalid(
                file, "context_length", f"is {context}, but there are only {positions} vectors of positions"
            )
        options = TextOptions.read(file, norm_eps=1e-12, rotates=False)
        options = options.each(lambda _, layer: dataclasses.replace(layer, remembers=WholeText()))
        return BertOptions(
            **vars(options), positions=positions, token_types=table_rows(file, "token_types.weight")
        )
