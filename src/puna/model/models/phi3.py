"""Phi-3, Phi-3.5 and Phi-4: Llama with fused projections, rotated in halves (Phi-4-mini only in part).

Abdin et al., arXiv:2404.14219. Models for long contexts scale frequencies differently in contexts longer than
the original one (LongRoPE).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import scalar
from puna.model.decoder import Decoder
from puna.model.layer_cache import Everything, Window
from puna.model.options import TextDefaults, TextOptions
from puna.nn.attention import FusedSelfAttention
from puna.nn.feed_forward import FusedFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    mixer: FusedSelfAttention = part()
    feed_forward: FusedFeedForward = part()


class Phi3(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(neox=True))
        size = scalar(file, "attention.sliding_window", 0)  # files without one may say 0
        remembers = Window(size) if 0 < size < scalar(file, "context_length", size + 1) else Everything()
        return options.each(lambda _, layer: dataclasses.replace(layer, remembers=remembers))
