"""StarCoder 2: LayerNorms, biases on all linears and a feed-forward network without gates.

Lozhkov et al., arXiv:2402.19173.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import scalar
from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import TextDefaults, TextOptions
from puna.nn.feed_forward import TanhGeluFeedForward
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreLayerNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreLayerNormLayer):
    feed_forward: TanhGeluFeedForward = part()  # type: ignore[assignment]


class Starcoder2(Decoder):
    layers: Sequence[Layer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(neox=True))
        if (window := scalar(file, "attention.sliding_window", 0)) < 1:
            return options
        return options.each(lambda _, layer: dataclasses.replace(layer, remembers=Window(window)))
