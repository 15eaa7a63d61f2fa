"""Llama 2 and 3.x, Mistral, Mixtral, and other models converted to the same network.

Touvron et al., arXiv:2307.09288; Grattafiori et al., arXiv:2407.21783; with experts instead of the
feed-forward network: Jiang et al., arXiv:2401.04088. GGUF files permute the query and key projections so that
rotary pairs are neighbours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import scalar
from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import TextOptions
from puna.nn.module import blocks
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Llama(Decoder):
    layers: Sequence[PreNormLayer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file)
        if (window := scalar(file, "attention.sliding_window", 0)) < 1:
            return options
        return options.each(lambda _, layer: dataclasses.replace(layer, remembers=Window(window)))
