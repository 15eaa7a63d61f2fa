"""Nemotron 3 and 4, Minitron: LayerNorms, half-rotated heads, squared ReLU without gates.

Parmar et al., arXiv:2402.16819.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.feed_forward import SquaredReluFeedForward
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreLayerNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreLayerNormLayer):
    feed_forward: SquaredReluFeedForward = part()  # type: ignore[assignment]


class Nemotron(Decoder):
    layers: Sequence[Layer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, TextDefaults(neox=True))
