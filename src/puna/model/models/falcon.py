"""Falcon and Falcon 2: attention and a feed-forward network without gates or biases, in parallel.

Almazrouei et al., arXiv:2311.16867. Many query heads share a key and value: all of the 7B model, and groups
in later ones. In the 40B and 180B models each half has a LayerNorm of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.attention import FusedSelfAttention
from puna.nn.feed_forward import PlainFeedForward
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import ParallelLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class FalconLayerOptions(LayerOptions):
    norms: int  # one for both halves, or one for each


class Layer(ParallelLayer):
    mixer: FusedSelfAttention = part()
    feed_forward: PlainFeedForward = part()


class TwoNormLayer(Layer):
    mixer_norm: LayerNorm = weight("attn_norm_2", "hidden_size")
    feed_forward_norm: LayerNorm = weight("attn_norm", "hidden_size")


def layer_kind(options: FalconLayerOptions) -> type[Layer]:
    return TwoNormLayer if options.norms == 2 else Layer


class Falcon(Decoder):
    layers: Sequence[Layer] = blocks("blk", choose=layer_kind)
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        def own(index: int, layer: LayerOptions) -> LayerOptions:
            norms = 1 + (f"blk.{index}.attn_norm_2.weight" in file.tensors)
            return FalconLayerOptions(**vars(layer), norms=norms)

        return TextOptions.read(file, TextDefaults(neox=True)).each(own)
