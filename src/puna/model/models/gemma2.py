"""Gemma 2: a sliding window in every other layer, and softcaps on attention scores and logits.

Gemma Team, arXiv:2408.00118. In GGUF files the weights of norms already include the reference's 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import required
from puna.model.decoder import Decoder
from puna.model.layer_cache import Everything, Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.feed_forward import GeluFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import SandwichNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_27B = 46  # layers


class Layer(SandwichNormLayer):
    feed_forward: GeluFeedForward = part()


class Gemma2(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        hidden, window = required(file, "embedding_length"), required(file, "attention.sliding_window", 4096)
        options = TextOptions.read(
            file,
            TextDefaults(
                neox=True,
                norm_eps=1e-6,
                head_dim=256,
                embedding_scale=math.sqrt(hidden),
                attention_softcap=50.0,
                logit_softcap=30.0,
            ),
        )

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            divisor = hidden // layer.heads if options.block_count == _27B else layer.head_dim
            return dataclasses.replace(
                layer,
                attention_scale=1 / math.sqrt(divisor),
                remembers=Everything() if index % 2 else Window(window),
            )

        return options.each(own)
