"""BitNet b1.58: Llama with weights -1, 0 or 1 times a scale, and norms before the last linear of each half.

Ma et al., arXiv:2402.17764 and arXiv:2504.12285. The published model of 2025 activates by squared ReLU.
Weights may be stored in any type; activations are not rounded to 8 bits beyond what that type's kernels do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import RMSNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class NormedOutputAttention(SelfAttention):
    """Self-attention that normalises what all heads have read, before the output."""

    output_norm: RMSNorm = weight("attn_sub_norm", "mixed_size")

    def finish(self, mixed: Array) -> Array:
        return self.output(self.output_norm(mixed))


class NormedDownFeedForward(FeedForward):
    """Gated network that normalises the input of its last linear."""

    down_norm: RMSNorm = weight("ffn_sub_norm", "feed_forward_size")

    def activated(self, gate: Array, up: Array) -> Array:
        return self.down_norm(super().activated(gate, up))


class SquaredReluGates(NormedDownFeedForward):
    """Such a network whose gates are activated by max(x, 0)² (So et al., arXiv:2109.08668)."""

    def activated(self, gate: Array, up: Array) -> Array:
        return self.down_norm(self.ops.squared_relu(gate) * up)


class Layer(PreNormLayer):
    mixer: NormedOutputAttention = part()
    feed_forward: NormedDownFeedForward = part()


class BitNet(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, TextDefaults(neox=True))


class SquaredReluLayer(Layer):
    feed_forward: SquaredReluGates = part()


class BitNet2025(BitNet):
    layers: Sequence[SquaredReluLayer] = blocks("blk")
