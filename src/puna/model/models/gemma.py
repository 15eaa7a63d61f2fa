"""Gemma: Llama with GELU gates, wide heads and scaled embeddings.

Gemma Team, arXiv:2403.08295. In GGUF files the weights of norms already include the reference's 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import required
from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.feed_forward import GeluFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    feed_forward: GeluFeedForward = part()


class Gemma(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        scale = math.sqrt(required(file, "embedding_length"))
        return TextOptions.read(
            file, TextDefaults(neox=True, norm_eps=1e-6, head_dim=256, embedding_scale=scale)
        )
