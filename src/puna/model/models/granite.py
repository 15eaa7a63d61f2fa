"""Granite 3, with experts or without: Llama with scales of embeddings, attention, residuals and logits.

Granite Team, IBM, "Granite 3.0 Language Models". The scale of the logits divides them. Some models with
experts have a shared one too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import scalar
from puna.model.decoder import Decoder
from puna.model.options import LayerOptions, TextOptions
from puna.nn.experts import MixtureOfExperts, SharedAndRouted, dense_or_shared
from puna.nn.feed_forward import FeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    feed_forward: FeedForward | MixtureOfExperts | SharedAndRouted = part(  # type: ignore[assignment]
        choose=dense_or_shared
    )


class Granite(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return with_scales(file, TextOptions.read(file))


def with_scales(file: GGUFFile, options: TextOptions) -> TextOptions:
    """`options` with shared experts only where the file has them, and a scale of logits that divides."""
    shared = scalar(file, "expert_shared_feed_forward_length", 0)

    def own(_: int, layer: LayerOptions) -> LayerOptions:
        experts = layer.experts and dataclasses.replace(layer.experts, shared_size=shared)
        return dataclasses.replace(layer, experts=experts)

    return dataclasses.replace(options.each(own), logit_scale=1 / options.logit_scale)
