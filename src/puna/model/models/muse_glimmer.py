"""Muse Glimmer of Meta: Gemma 2's norms, gated attention, and rotation only in layers with a window.

Meta, "Muse Glimmer", 2026. Embeddings are normalised before the first layer. In GGUF files the weights of
norms already include the reference's 1, and those of queries its factor on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.batch import BatchArrays
from puna.model.decoder import Decoder
from puna.model.options import TextOptions, rotated_within_windows
from puna.nn.attention import SeparatelyGatedSelfAttention
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import unit_norm
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import SandwichNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_POST_EPS = 1e-8  # not stated in files


class Layer(SandwichNormLayer):
    mixer: SeparatelyGatedSelfAttention = part()
    feed_forward: FeedForward = part()

    def loaded(self) -> None:
        super().loaded()
        self.post_mixer_norm.eps = self.post_feed_forward_norm.eps = _POST_EPS


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
        return rotated_within_windows(file, TextOptions.read(file))
