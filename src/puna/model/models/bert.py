"""BERT and models trained like it (BGE, E5, GTE, MiniLM ...): the first of the encoders.

Devlin et al., arXiv:1810.04805. RoBERTa's files count positions from 0, like BERT's. Where token types tell
documents from queries, a document's places follow those of queries, and a place's vector is the position's
plus that of the type.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from puna.batch import BatchArrays, Input
from puna.errors import UnsupportedModelError
from puna.gguf.metadata import check_positions, table_rows
from puna.model.encoder import Encoder, EncoderOptions
from puna.model.options import fusable
from puna.nn.attention import SelfAttention, fused_or_separate
from puna.nn.feed_forward import PlainFeedForward
from puna.nn.heads import Classifier
from puna.nn.layers import Embedding
from puna.nn.module import WeightSource, blocks, part, weight
from puna.nn.transformer_layer import ResidualNormLayer
from puna.ops import Array, Weight

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class BertOptions(EncoderOptions):
    positions: int = 0  # number of position vectors: the longest text

    @property
    def kinds(self) -> int:
        """Token types: one for an encoder, two for a reranker."""
        return 2 if self.labels and self.token_types > 1 else 1


class Places(Embedding):
    """Position vectors; with two token types, those for both, one after the other."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: BertOptions
    ) -> Self | None:
        if options.kinds == 1:
            return super().from_source(source, name, shape, options)
        first = source.values(f"{name}.weight", shape)
        kinds = source.values("token_types.weight", (options.token_types, options.hidden_size))
        if first is None or kinds is None:
            return None
        second = first + (kinds[1] - kinds[0])  # the first type is added to all tokens
        return cls(source.ops, Weight.from_values(f"{name}.weight", np.concatenate([first, second])))


class PairClassifier(Classifier):
    """Classifier of pairs whose texts have different token types."""

    options: BertOptions

    def inputs(self, query: list[int], document: list[int]) -> list[Input]:
        begin = self.options.positions  # of documents' places
        places = [*range(len(query)), *range(begin + len(query), begin + len(query) + len(document))]
        return [
            Input(token, place=(place,), advance=0)
            for token, place in zip((*query, *document), places, strict=True)
        ]


def _classifier(options: BertOptions) -> type[Classifier] | None:
    if not options.labels:
        return None
    return PairClassifier if options.kinds == 2 else Classifier


class Layer(ResidualNormLayer):
    mixer: SelfAttention = part(choose=fused_or_separate)
    feed_forward: PlainFeedForward = part()


class Bert(Encoder):
    options: BertOptions
    classifier: Classifier | None = part(choose=_classifier)
    position_embedding: Places = weight("position_embd", "positions", "hidden_size")
    layers: Sequence[Layer] = blocks("blk")

    def embedded(self, batch: BatchArrays) -> Array:
        embedded: Array = super().embedded(batch) + self.position_embedding(batch.positions.reshape(-1))
        return embedded

    @classmethod
    def read_options(cls, file: GGUFFile) -> BertOptions:
        options = fusable(file, BertOptions.read_encoder(file))
        if options.kinds == 2 and "cls.weight" not in file.tensors:
            raise UnsupportedModelError(
                f"{file.path}: the pooler before the classifier is missing ('cls.weight'): llama.cpp's "
                "converter leaves it out; convert the published model with `puna convert`"
            )
        positions = table_rows(file, "position_embd.weight")
        if positions:
            check_positions(file, positions)
        return dataclasses.replace(options, positions=positions)
