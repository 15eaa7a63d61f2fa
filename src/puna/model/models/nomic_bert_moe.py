"""Nomic Embed 2: BERT with rotated queries and keys, and with experts in every other layer.

Nussbaum and Duderstadt, arXiv:2502.07972. Experts have no gates; a chosen one is weighted by its share among
all experts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import required
from puna.model.encoder import Encoder, EncoderOptions
from puna.model.options import LayerOptions
from puna.nn.attention import FusedSelfAttention
from puna.nn.experts import PlainExperts
from puna.nn.feed_forward import PlainFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import ResidualNormLayer
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


def _feed_forward(options: LayerOptions) -> type[PlainFeedForward | PlainExperts]:
    return PlainExperts if options.experts else PlainFeedForward


class Layer(ResidualNormLayer):
    mixer: FusedSelfAttention = part()
    feed_forward: PlainFeedForward | PlainExperts = part(choose=_feed_forward)


class NomicBertMoe(Encoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> EncoderOptions:
        options = EncoderOptions.read_encoder(
            file, norm_eps=1e-5, rope_base=10000.0, routing=Routing(0, normalize=False)
        )
        every = required(file, "moe_every_n_layers", 2)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            return layer if index % every == 1 else dataclasses.replace(layer, experts=None)

        return options.each(own)
