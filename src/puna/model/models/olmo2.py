"""OLMo 2: norms after each half of a layer instead of before it, and of all queries and keys together.

OLMo Team, arXiv:2501.00656.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextOptions
from puna.nn.attention import WideNormedSelfAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PostNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PostNormLayer):
    mixer: WideNormedSelfAttention = part()


class Olmo2(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, neox=True, norm_eps=1e-6, rope_base=500000.0)
