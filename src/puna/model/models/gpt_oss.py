"""gpt-oss of OpenAI: experts in every layer, attention sinks, and a window in every other layer.

OpenAI, arXiv:2508.10925. Every linear has a bias. YaRN's ramp is not rounded to whole pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.gguf.metadata import required
from puna.model.decoder import Decoder
from puna.model.layer_cache import Everything, Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.model.rope import RopeOptions, read_yarn
from puna.nn.attention import FusedSelfAttention, SelfAttention
from puna.nn.experts import AlternatingExpertLinear, MixtureOfExperts
from puna.nn.layers import Linear, RMSNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class GptOssLayerOptions(LayerOptions):
    fused: bool  # whether queries, keys and values are one tensor


class Attention(SelfAttention):
    sinks: Array = weight("attn_sinks", "heads")
    output: Linear = weight("attn_output|attn_out", "hidden_size", "mixed_size")


class FusedAttention(FusedSelfAttention):
    sinks: Array = weight("attn_sinks", "heads")
    output: Linear = weight("attn_output|attn_out", "hidden_size", "mixed_size")


class Experts(MixtureOfExperts):
    activation: ClassVar[str] = "clamped_swiglu"
    gate: AlternatingExpertLinear = weight(
        "ffn_gate_exps", "expert_count", "expert_feed_forward_size", "hidden_size"
    )
    up: AlternatingExpertLinear = weight(
        "ffn_up_exps", "expert_count", "expert_feed_forward_size", "hidden_size"
    )


def mixer_kind(options: GptOssLayerOptions) -> type[Attention | FusedAttention]:
    return FusedAttention if options.fused else Attention


class Layer(PreNormLayer):
    mixer: Attention | FusedAttention = part(choose=mixer_kind)
    feed_forward_norm: RMSNorm = weight("post_attention_norm|ffn_norm", "hidden_size")
    feed_forward: Experts = part()


class GptOss(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(neox=True, head_dim=64, rope_base=150000.0))
        window = required(file, "attention.sliding_window", 128)
        rope = _rope(file, options)
        fused = "blk.0.attn_qkv.weight" in file.tensors

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            remembers = Everything() if index % 2 else Window(window)
            return GptOssLayerOptions(**vars(layer) | {"rope": rope, "remembers": remembers}, fused=fused)

        return options.each(own)


def _rope(file: GGUFFile, options: TextOptions) -> RopeOptions:
    """Return the rotation with YaRN, which some files do not name."""
    rope = options.layers[0].rope
    assert rope is not None
    yarn = dataclasses.replace(read_yarn(file), truncate=False)
    return dataclasses.replace(rope, linear_factor=1.0, magnitude=1.0, yarn=yarn)
