"""GLM-4.5 and later with experts: partial rotation, biased sigmoid routing, one shared expert.

GLM-4.5 Team, arXiv:2508.06471. Only the large models normalise queries and keys. Vision models (GLM-4.5V)
have positions in time, height and width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import LayerOptions, TextDefaults, TextOptions, with_axes
from puna.model.rope import SECTIONS
from puna.nn.attention import NormedSelfAttention, SelfAttention
from puna.nn.experts import SharedAndRouted, dense_or_shared
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import RMSNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Glm4MoeLayerOptions(LayerOptions):
    normed: bool  # whether queries and keys are normalised


def mixer_kind(options: Glm4MoeLayerOptions) -> type[SelfAttention]:
    return NormedSelfAttention if options.normed else SelfAttention


class Layer(PreNormLayer):
    mixer: SelfAttention = part(choose=mixer_kind)
    feed_forward_norm: RMSNorm = weight("post_attention_norm", "hidden_size")
    feed_forward: FeedForward | SharedAndRouted = part(choose=dense_or_shared)  # type: ignore[assignment]


class Glm4Moe(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(
            file, TextDefaults(neox=True, rope_base=1e6, routing=Routing(0, sigmoid=True), predicts=True)
        )
        normed = "blk.0.attn_q_norm.weight" in file.tensors
        if any(file.get(key) is not None for key in SECTIONS):
            options = with_axes(file, options)
        return options.each(lambda _, layer: Glm4MoeLayerOptions(**vars(layer), normed=normed))
