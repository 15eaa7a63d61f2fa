"""Phi-1, 1.5 and 2: attention and a feed-forward network without gates, in parallel after one LayerNorm.

Li et al., arXiv:2309.05463. All linears have biases, the output too; part of each head is rotated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions, fusable
from puna.nn.attention import SelfAttention, fused_or_separate
from puna.nn.feed_forward import TanhGeluFeedForward
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import ParallelLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(ParallelLayer):
    mixer: SelfAttention = part(choose=fused_or_separate)
    feed_forward: TanhGeluFeedForward = part()


class Phi2(Decoder):
    layers: Sequence[Layer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return fusable(file, TextOptions.read(file, TextDefaults(neox=True)))
