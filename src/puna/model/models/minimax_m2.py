"""MiniMax-M2: 256 experts with biased sigmoid routing, rotation of half of each head, and wide norms.

MiniMax, "MiniMax-M2", 2025. Queries and keys are normalised across all heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.attention import WideNormedSelfAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    mixer: WideNormedSelfAttention = part()


class MiniMaxM2(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(
            file, TextDefaults(neox=True, norm_eps=1e-6, rope_base=5e6, routing=Routing(0, sigmoid=True))
        )
