"""BLOOM: GPT-2 with ALiBi instead of learned positions, and a LayerNorm after the embedding.

BigScience Workshop, arXiv:2211.05100.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.batch import BatchArrays
from puna.model.alibi import AlibiDecoder, AlibiOptions
from puna.nn.attention import FusedSelfAttention
from puna.nn.feed_forward import TanhGeluFeedForward
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreLayerNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreLayerNormLayer):
    mixer: FusedSelfAttention = part()
    feed_forward: TanhGeluFeedForward = part()  # type: ignore[assignment]


class Bloom(AlibiDecoder):
    embedding_norm: LayerNorm = weight("token_embd_norm", "hidden_size")
    layers: Sequence[Layer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    def embed(self, batch: BatchArrays) -> list[Array]:
        [hidden] = super().embed(batch)
        return [self.embedding_norm(hidden)]

    @classmethod
    def read_options(cls, file: GGUFFile) -> AlibiOptions:
        return AlibiOptions.read_alibi(file)
