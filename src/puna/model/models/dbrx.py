"""DBRX: LayerNorms without biases, sixteen experts, and limits on queries, keys and values.

Databricks, "Introducing DBRX", 2024.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.models.mpt import clamped
from puna.model.options import TextDefaults, TextOptions
from puna.nn.attention import ClampedSelfAttention
from puna.nn.experts import MixtureOfExperts
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreLayerNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreLayerNormLayer):
    mixer: ClampedSelfAttention = part()
    feed_forward_norm: LayerNorm = weight("attn_output_norm", "hidden_size")
    feed_forward: MixtureOfExperts = part()


class Dbrx(Decoder):
    layers: Sequence[Layer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return clamped(file, TextOptions.read(file, TextDefaults(neox=True)))
