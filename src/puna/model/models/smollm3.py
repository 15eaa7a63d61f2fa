"""SmolLM3: Llama without rotation in every fourth layer.

Bakouch et al., "SmolLM3: smol, multilingual, long-context reasoner", 2025; Yang et al., arXiv:2501.18795.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.module import blocks
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_PERIOD = 4  # not stated in files


class SmolLM3(Decoder):
    layers: Sequence[PreNormLayer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(norm_eps=1e-6, rope_base=2e6))

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            return layer if (index + 1) % _PERIOD else dataclasses.replace(layer, rope=None)

        return options.each(own)
