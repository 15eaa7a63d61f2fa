"""Granite 3, dense or with experts: Llama with scales of embeddings, attention, residuals and logits.

Granite Team, IBM, "Granite 3.0 Language Models". Logits are divided by their scale. Some models with experts
also have a shared one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.batch import BatchArrays
from puna.gguf.metadata import scalar
from puna.model.decoder import Decoder
from puna.model.options import LayerOptions, TextOptions
from puna.nn.experts import MixtureOfExperts, SharedAndRouted, dense_or_shared
from puna.nn.feed_forward import FeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array

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

    def embed(self, batch: BatchArrays) -> list[Array]:
        """Return the first layer's inputs: tokens and rows of recordings are scaled alike."""
        hidden = self.token_embedding(batch.tokens)
        if batch.payloads:
            hidden = self.with_images(hidden, batch)
        return [hidden * self.options.embedding_scale]


def with_scales(file: GGUFFile, options: TextOptions) -> TextOptions:
    """Return `options` with shared experts only if the file has them, and logits divided by their scale."""
    shared = scalar(file, "expert_shared_feed_forward_length", 0)

    def own(_: int, layer: LayerOptions) -> LayerOptions:
        experts = layer.experts and dataclasses.replace(layer.experts, shared_size=shared)
        return dataclasses.replace(layer, experts=experts)

    return dataclasses.replace(options.each(own), logit_scale=1 / options.logit_scale)
