"""Jina Embeddings 3: XLM-RoBERTa with rotated queries and keys instead of position vectors.

Sturua et al., arXiv:2409.10173. Its task adapters are separate files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.encoder import Encoder, EncoderOptions
from puna.nn.attention import FusedSelfAttention
from puna.nn.feed_forward import PlainFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import ResidualNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(ResidualNormLayer):
    mixer: FusedSelfAttention = part()
    feed_forward: PlainFeedForward = part()


class JinaBertV3(Encoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> EncoderOptions:
        return EncoderOptions.read_encoder(file, norm_eps=1e-5, rope_base=20000.0)
