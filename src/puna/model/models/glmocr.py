"""Language model of GLM-OCR in Ollama's files: GLM-4 with positions in time, height and width.

Reference: `GlmOcrTextModel` in Hugging Face transformers. Tensor names differ from GLM-4's, and gates and ups
are separate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions, with_axes
from puna.nn.attention import SelfAttention
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import Linear, RMSNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import SandwichNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Attention(SelfAttention):
    output: Linear = weight("attn_out", "hidden_size", "mixed_size")


class Layer(SandwichNormLayer):
    mixer: Attention = part()
    post_mixer_norm: RMSNorm = weight("post_attn_norm", "hidden_size")
    feed_forward: FeedForward = part()
    post_feed_forward_norm: RMSNorm = weight("post_ffn_norm", "hidden_size")


class GlmOcr(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return with_axes(
            file, TextOptions.read(file, TextDefaults(neox=True, norm_eps=1e-5)), shares=(2, 3, 3)
        )
