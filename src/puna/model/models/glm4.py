"""GLM-4: rotation of the first half of each head, neighbours in pairs, and norms of what the halves add.

Team GLM, arXiv:2406.12793. The norms are as in Gemma 2; gates and ups are one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextOptions
from puna.nn.feed_forward import FusedFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import SandwichNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(SandwichNormLayer):
    feed_forward: FusedFeedForward = part()


class Glm4(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, norm_eps=1.5625e-7)
