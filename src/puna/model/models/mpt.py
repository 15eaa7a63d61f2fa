"""MPT: ALiBi, LayerNorms, exact GELU, and in some models limits on queries, keys and values.

MosaicML, "Introducing MPT-7B", 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.gguf.metadata import limit
from puna.model.alibi import AlibiDecoder, AlibiOptions
from puna.model.options import LayerOptions, Options
from puna.nn.attention import ClampedSelfAttention
from puna.nn.feed_forward import PlainFeedForward
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreLayerNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class ClampedLayerOptions(LayerOptions):
    clamp: float  # largest magnitude of queries, keys and values; 0: no limit


class Layer(PreLayerNormLayer):
    mixer: ClampedSelfAttention = part()
    feed_forward: PlainFeedForward = part()  # type: ignore[assignment]


class Mpt(AlibiDecoder):
    layers: Sequence[Layer] = blocks("blk")
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> AlibiOptions:
        return clamped(file, AlibiOptions.read_alibi(file))


def clamped(file: GGUFFile, options: Options) -> Options:
    """Return `options` with the file's limit of queries, keys and values."""
    clamp = limit(file, "attention.clamp_kqv", 0.0)

    def own(_: int, layer: LayerOptions) -> LayerOptions:
        return ClampedLayerOptions(**vars(layer), clamp=clamp)

    return options.each(own)
