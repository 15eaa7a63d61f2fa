"""Command R of Cohere: attention and feed-forward in parallel after one LayerNorm without bias.

In Command R7B and Command A (`cohere2`) three of four layers have a sliding window, and the others do not
rotate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.errors import UnsupportedModelError
from puna.model.decoder import Decoder
from puna.model.options import TextOptions, rotated_within_windows
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import ParallelLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(ParallelLayer):
    feed_forward: FeedForward = part()


class Cohere(Decoder):
    layers: Sequence[Layer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        if "blk.0.attn_q_norm.weight" in file.tensors:
            raise UnsupportedModelError(
                f"{file.path}: norms of queries and keys ('blk.0.attn_q_norm.weight') are not supported for "
                f"{file.architecture}"
            )
        return TextOptions.read(file)


class Cohere2(Cohere):
    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return rotated_within_windows(file, super().read_options(file))
