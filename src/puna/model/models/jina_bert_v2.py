"""Jina Embeddings 2 and Rerankers 1: BERT without positions.

Günther et al., arXiv:2310.19923: ALiBi biases attention by distance, and GELUs are gated. The models for code
also normalise queries and keys across heads and norm the attention's output a second time; where gates and
ups are one tensor, theirs has the ups first, which llama.cpp takes for gates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.batch import BatchArrays
from puna.gguf.metadata import table_rows
from puna.kvcache.cache import Cache
from puna.model.alibi import read_reach
from puna.model.encoder import Encoder, EncoderOptions
from puna.model.options import LayerOptions
from puna.nn.attention import SelfAttention
from puna.nn.distance import share_linear_bias
from puna.nn.feed_forward import (
    ExactGeluFeedForward,
    FeedForward,
    FusedExactGeluFeedForward,
    PlainFeedForward,
)
from puna.nn.heads import Classifier, DirectClassifier
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import ResidualNormLayer
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class JinaLayerOptions(LayerOptions):
    feed_forward: type[FeedForward | PlainFeedForward]


def _feed_forward(options: JinaLayerOptions) -> type[FeedForward | PlainFeedForward]:
    return options.feed_forward


class UpFirstFeedForward(FusedExactGeluFeedForward):
    """Gated network whose joint tensor has ups before gates, as in the models for code."""

    def project(self, hidden: Array) -> list[Array]:
        up, gate = super().project(hidden)
        return [gate, up]


class Attention(SelfAttention):
    query_norm: LayerNorm | None = weight("attn_q_norm", "query_size", optional=True)
    key_norm: LayerNorm | None = weight("attn_k_norm", "key_size", optional=True)

    def project(self, hidden: Array) -> list[Array]:
        query, key, value = super().project(hidden)
        query = query if self.query_norm is None else self.query_norm(query)
        return [query, key if self.key_norm is None else self.key_norm(key), value]


class Layer(ResidualNormLayer):
    mixer: Attention = part()
    second_norm: LayerNorm | None = weight("attn_norm_2", "hidden_size", optional=True)
    feed_forward: FeedForward | PlainFeedForward = part(choose=_feed_forward)

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.mixer.forward(hidden, batch, cache, rope, rows)
        residual = hidden if rows is None else hidden[rows]
        hidden = self.mixer_norm(mixed + residual)
        if self.second_norm is not None:
            hidden = self.second_norm(hidden + residual)
        return self.feed_forward_norm(hidden + self.feed_forward.forward(hidden))


@dataclass(frozen=True, kw_only=True)
class JinaBertV2Options(EncoderOptions):
    context: int = 0  # longest text
    pools: bool = False  # whether a reranker has the layer before its classifier


def _classifier(options: JinaBertV2Options) -> type[Classifier] | None:
    if not options.labels:
        return None
    return Classifier if options.pools else DirectClassifier


class JinaBertV2(Encoder):
    options: JinaBertV2Options
    classifier: Classifier | None = part(choose=_classifier)
    layers: Sequence[Layer] = blocks("blk")

    def loaded(self) -> None:
        super().loaded()
        share_linear_bias([layer.mixer for layer in self.layers], self.options.context)

    @classmethod
    def read_options(cls, file: GGUFFile) -> JinaBertV2Options:
        options = EncoderOptions.read_encoder(file)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            rows = table_rows(file, f"blk.{index}.ffn_up.weight")
            kind: type[FeedForward | PlainFeedForward] = PlainFeedForward
            if f"blk.{index}.ffn_gate.weight" in file.tensors:
                kind = ExactGeluFeedForward
            elif rows == 2 * layer.feed_forward_size:
                for_code = f"blk.{index}.attn_norm_2.weight" in file.tensors
                kind = UpFirstFeedForward if for_code else FusedExactGeluFeedForward
            return JinaLayerOptions(**vars(layer), feed_forward=kind)

        return JinaBertV2Options(
            **vars(options.each(own)),
            context=read_reach(file),
            pools="cls.output.weight" in file.tensors,
        )
