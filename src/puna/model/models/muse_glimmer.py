"""Muse Glimmer of Meta: Gemma 2's norms, gated attention, and rotation only in layers with a window.

Meta, "Muse Glimmer", 2026. Embeddings are normalised before the first layer. In GGUF files the weights of
norms already include the reference's 1, and those of queries its factor on them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from puna.batch import BatchArrays
from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import LayerOptions, TextOptions, read_windows
from puna.nn.attention import SeparatelyGatedSelfAttention
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import RMSNorm, unit_norm
from puna.nn.module import WeightSource, blocks, part, weight
from puna.nn.transformer_layer import SandwichNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_POST_EPS = 1e-8  # not stated in files


class PostNorm(RMSNorm):
    """A norm after a half of a layer, with an epsilon of its own."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        norm = super().from_source(source, name, shape, options)
        if norm is not None:
            norm.eps = _POST_EPS
        return norm


class Layer(SandwichNormLayer):
    mixer: SeparatelyGatedSelfAttention = part()
    post_mixer_norm: PostNorm = weight("post_attention_norm", "hidden_size")
    feed_forward: FeedForward = part()
    post_feed_forward_norm: PostNorm = weight("post_ffw_norm", "hidden_size")


class MuseGlimmer(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    def loaded(self) -> None:
        super().loaded()
        self.embedding_norm = unit_norm(self.ops, self.options.hidden_size, self.options.norm_eps)

    def embed(self, batch: BatchArrays) -> list[Array]:
        hidden = self.embedding_norm(self.token_embedding(batch.tokens))
        return [self.with_images(hidden, batch) if batch.payloads else hidden]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file)
        remembers = read_windows(file, options.block_count, period=4)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            rope = layer.rope if isinstance(remembers[index], Window) else None
            return dataclasses.replace(layer, rope=rope, remembers=remembers[index])

        return options.each(own)
