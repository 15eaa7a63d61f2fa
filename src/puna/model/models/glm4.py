"""GLM-4: rotation of the first half of each head, neighbours in pairs, and norms of what the halves add.

Team GLM, arXiv:2406.12793. The norms are as in Gemma 2; gates and ups are one tensor. What sees (GLM-OCR) has
places in time, height and width; its files have queries and keys in an order in which halves are paired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextOptions, with_axes
from puna.model.rope import SECTIONS
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
        seeing = any(file.get(key) is not None for key in SECTIONS)
        options = TextOptions.read(file, norm_eps=1.5625e-7, neox=seeing)
        return with_axes(file, options) if seeing else options
