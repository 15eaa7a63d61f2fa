"""EXAONE 4: norms after each half of a layer, and of each head's queries and keys.

LG AI Research, arXiv:2507.11407. In the 32B model three of four layers have a sliding window, and the others
do not rotate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions, read_windows
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
        return rotated_within_windows(file, TextOptions.read(file, TextDefaults(neox=True, rope_base=1e6)))


def rotated_within_windows(file: GGUFFile, options: TextOptions) -> TextOptions:
    """Return `options` with the file's windows; only layers with one rotate, or all if none has one."""
    remembers = read_windows(file, options.block_count, period=4)
    hybrid = any(isinstance(each, Window) for each in remembers)

    def own(index: int, layer: LayerOptions) -> LayerOptions:
        rotates = isinstance(remembers[index], Window) or not hybrid
        rope = layer.rope if rotates else None
        return dataclasses.replace(layer, rope=rope, remembers=remembers[index])

    return options.each(own)
