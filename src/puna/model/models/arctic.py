"""Arctic of Snowflake: a dense network after attention, and 128 experts beside both.

Snowflake AI Research, "Snowflake Arctic", 2024. The experts read the layer's input, and the dense network is
as wide as the residual stream.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.experts import MixtureOfExperts
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import RMSNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import TransformerLayer
from puna.ops import Array, Rope, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(TransformerLayer):
    mixer_norm: RMSNorm = weight("attn_norm", "hidden_size")
    mixer: SelfAttention = part()
    feed_forward_norm: RMSNorm = weight("ffn_norm", "hidden_size")
    feed_forward: FeedForward = part()
    experts_norm: RMSNorm = weight("ffn_norm_exps", "hidden_size")
    experts: MixtureOfExperts = part()

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.mixer.forward(self.mixer_norm(hidden), batch, cache, rope, rows)
        given = hidden if rows is None else hidden[rows]
        hidden, normed = self.feed_forward_norm.after_adding(mixed, given)
        routed = self.experts.forward(self.experts_norm(given))
        total: Array = hidden + self.feed_forward.forward(normed) + routed
        return total


class Arctic(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(routing=Routing(0)))
        # The file's size of a feed-forward network is that of an expert.
        return options.each(lambda _, layer: dataclasses.replace(layer, feed_forward_size=layer.hidden_size))
