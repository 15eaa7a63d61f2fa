"""Nomic Embed: BERT with rotated queries and keys instead of position vectors, and SwiGLU.

Nussbaum et al., arXiv:2402.01613.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.encoder import Encoder, EncoderOptions
from puna.nn.attention import FusedSelfAttention
from puna.nn.feed_forward import FeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import ResidualNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(ResidualNormLayer):
    mixer: FusedSelfAttention = part()
    feed_forward: FeedForward = part()


class NomicBert(Encoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> EncoderOptions:
        return EncoderOptions.read_encoder(file, rope_base=1000.0)
