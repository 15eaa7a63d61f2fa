"""ERNIE 4.5 of Baidu: Llama, optionally with experts in most layers, some of them shared.

Baidu ERNIE Team, "ERNIE 4.5 Technical Report", 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.experts import MixtureOfExperts, dense_or_shared
from puna.nn.feed_forward import FeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    feed_forward: FeedForward | MixtureOfExperts = part(choose=dense_or_shared)


class Ernie45(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, TextDefaults(rope_base=500000.0))
