"""OLMoE: 64 small experts in every layer, and norms across all queries and all keys.

Muennighoff et al., arXiv:2409.02060.
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


class Olmoe(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, TextDefaults(neox=True, routing=Routing(0, normalize=False)))
