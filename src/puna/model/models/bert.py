"""BERT and what was trained like it (BGE, E5, GTE, MiniLM ...): the first of the encoders.

Devlin et al., arXiv:1810.04805. RoBERTa's files have their positions counted from 0, as BERT's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.batch import BatchArrays
from puna.errors import UnsupportedModelError
from puna.model.encoder import Encoder, EncoderOptions
from puna.model.metadata import invalid, required, table_rows
from puna.nn.feed_forward import PlainFeedForward
from puna.nn.layers import Embedding
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import ResidualNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class BertOptions(EncoderOptions):
    positions: int = 0  # that there are vectors of: the longest text


class Layer(ResidualNormLayer):
    feed_forward: PlainFeedForward = part()


class Bert(Encoder):
    options: BertOptions
    position_embedding: Embedding = weight("position_embd", "positions", "hidden_size")
    layers: Sequence[Layer] = blocks("blk")

    def embedded(self, batch: BatchArrays) -> Array:
        embedded: Array = super().embedded(batch) + self.position_embedding(batch.positions)
        return embedded

    @classmethod
    def read_options(cls, file: GGUFFile) -> BertOptions:
        options = BertOptions.read_encoder(file)
        if options.labels and options.token_types > 1:
            raise UnsupportedModelError(
                f"{file.path}: rerankers that tell documents from queries by token types are not supported"
            )
        positions = table_rows(file, "position_embd.weight")
        context = required(file, "context_length", max(positions, 1))
        if positions and context > positions:
            raise invalid(
                file, "context_length", f"is {context}, but there are only {positions} vectors of positions"
            )
        return dataclasses.replace(options, positions=positions)
