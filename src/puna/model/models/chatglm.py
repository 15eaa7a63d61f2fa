"""ChatGLM 3 and GLM-4 of 2024: Llama with half of each head rotated in neighbouring pairs, and fused gates.

Team GLM, arXiv:2406.12793. Queries, keys and values, which have biases, are one tensor or three.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions, fusable
from puna.nn.attention import SelfAttention, fused_or_separate
from puna.nn.feed_forward import FusedFeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    mixer: SelfAttention = part(choose=fused_or_separate)
    feed_forward: FusedFeedForward = part()


class ChatGlm(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return fusable(file, TextOptions.read(file, TextDefaults(norm_eps=1.5625e-7)))
