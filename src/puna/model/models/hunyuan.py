"""Hunyuan models of Tencent: queries and keys are normalised after rotation.

Tencent Hunyuan Team, "Hunyuan-7B" and smaller, 2025; "Hunyuan-A13B Technical Report", 2025, with experts of
which one is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.experts import SharedAndRouted
from puna.nn.layers import RMSNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Attention(SelfAttention):
    query_norm: RMSNorm = weight("attn_q_norm", "head_dim")
    key_norm: RMSNorm = weight("attn_k_norm", "head_dim")

    def place(self, query: Array, key: Array, positions: Array, rope: Rope | None) -> tuple[Array, Array]:
        query, key = super().place(query, key, positions, rope)
        return self.query_norm(query), self.key_norm(key)


class Layer(PreNormLayer):
    mixer: Attention = part()


class HunyuanDense(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, TextDefaults(neox=True))


class LayerOfExperts(Layer):
    feed_forward: SharedAndRouted = part()  # type: ignore[assignment]


class HunyuanMoe(HunyuanDense):
    layers: Sequence[LayerOfExperts] = blocks("blk")
