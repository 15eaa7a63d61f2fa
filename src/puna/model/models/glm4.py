"""GLM-4: rotation of the first half of each head in neighbouring pairs, and norms after each half.

Team GLM, arXiv:2406.12793. The norms are as in Gemma 2; gates and ups are one tensor. Vision models (GLM-OCR)
have positions in time, height and width; their files order queries and keys for pairs half a head apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions, with_axes
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
        options = TextOptions.read(file, TextDefaults(norm_eps=1.5625e-7, neox=seeing))
        return with_axes(file, options) if seeing else options
