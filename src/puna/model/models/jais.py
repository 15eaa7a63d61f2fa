"""Jais: GPT-2 with ALiBi and gates, and scores divided by the size of a head, as by muP (arXiv:2203.03466).

Sengupta et al., arXiv:2308.16149. muP's factors of embeddings and logits are part of the weights in files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.alibi import AlibiDecoder, AlibiOptions
from puna.nn.attention import FusedSelfAttention
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreLayerNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreLayerNormLayer):
    mixer: FusedSelfAttention = part()
    feed_forward: FeedForward = part()


class Jais(AlibiDecoder):
    layers: Sequence[Layer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> AlibiOptions:
        options = AlibiOptions.read_alibi(file)
        return options.each(lambda _, layer: dataclasses.replace(layer, attention_scale=1 / layer.head_dim))
