"""Seed-OSS of ByteDance: Llama rotated in halves, with biases on queries, keys and values.

ByteDance Seed Team, "Seed-OSS Open-Source Models", 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.layers import RMSNorm
from puna.nn.module import blocks, weight
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    feed_forward_norm: RMSNorm = weight("post_attention_norm", "hidden_size")


class SeedOss(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, TextDefaults(neox=True, norm_eps=1e-6, rope_base=1e7))
