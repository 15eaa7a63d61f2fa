"""EXAONE 4: norms after each half of a layer, and of each head's queries and keys.

LG AI Research, arXiv:2507.11407. In the 32B model three of four layers have a sliding window, and the others
do not rotate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions, rotated_within_windows
from puna.nn.attention import NormedSelfAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PostNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PostNormLayer):
    mixer: NormedSelfAttention = part()


class Exaone4(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(neox=True, rope_base=1e6))
        return rotated_within_windows(file, options, or_everywhere=True)
