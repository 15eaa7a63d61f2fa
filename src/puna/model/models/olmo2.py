"""OLMo 2: norms after each half of a layer instead of before, and across all queries and all keys.

OLMo Team, arXiv:2501.00656. In OLMo 3 three of four layers have a sliding window, and only the others scale
their rotation for long contexts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions, read_windows
from puna.model.rope import RopeOptions
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
        options = TextOptions.read(file, TextDefaults(neox=True, norm_eps=1e-6, rope_base=500000.0))
        remembers = read_windows(file, options.block_count, period=4)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            rope = layer.rope
            assert rope is not None
            if isinstance(remembers[index], Window):
                rope = RopeOptions(rope.dims, rope.base, neox=True)
            elif rope.yarn is not None:  # files repeat what follows from the other settings as a factor
                rope = dataclasses.replace(rope, yarn=dataclasses.replace(rope.yarn, attention_factor=1.0))
            return dataclasses.replace(layer, rope=rope, remembers=remembers[index])

        return options.each(own)
