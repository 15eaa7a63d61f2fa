"""PLaMo 3 of Preferred Networks: norms around both halves of a layer, and a window in most layers.

Preferred Networks and NICT, "PLaMo 3 NICT 2B, 8B, 31B", 2025. Layers with a window rotate by a base of their
own, without scaling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions, read_windows
from puna.nn.attention import FusedNormedSelfAttention
from puna.nn.feed_forward import FusedFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import SandwichNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(SandwichNormLayer):
    mixer: FusedNormedSelfAttention = part()
    feed_forward: FusedFeedForward = part()


class Plamo3(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(neox=True, norm_eps=1e-6))
        remembers = read_windows(file, options.block_count, period=8)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            rope = layer.rope
            assert rope is not None
            if isinstance(remembers[index], Window):
                rope = rope.within_window(file, layer.head_dim, base=10000.0)
            return dataclasses.replace(layer, rope=rope, remembers=remembers[index])

        return options.each(own)
