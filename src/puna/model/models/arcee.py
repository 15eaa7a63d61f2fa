"""AFM of Arcee: Llama with a feed-forward network without gates, whose activation is a squared ReLU.

Arcee AI, "Arcee Foundation Models", 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextOptions
from puna.nn.feed_forward import SquaredReluFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    feed_forward: SquaredReluFeedForward = part()  # type: ignore[assignment]


class Arcee(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file)
