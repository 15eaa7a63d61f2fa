"""Qwen 3, dense or with experts: Llama with norms of queries and keys, rotated in halves.

Qwen Team, arXiv:2505.09388.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.attention import NormedSelfAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    mixer: NormedSelfAttention = part()


class Qwen3(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, TextDefaults(neox=True, norm_eps=1e-6, rope_base=1e6))
