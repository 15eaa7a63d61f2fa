"""GPT-NeoX and Pythia: both halves of a layer read its input through LayerNorms of their own.

Black et al., arXiv:2204.06745; Biderman et al., arXiv:2304.01373. Some models have the halves one after the
other instead, such as RedPajama-INCITE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.gguf.metadata import flag
from puna.model.decoder import Decoder
from puna.model.options import GeluLayerOptions, LayerOptions, TextDefaults, TextOptions, with_gelu
from puna.nn.attention import FusedSelfAttention
from puna.nn.feed_forward import PlainFeedForward, exact_or_tanh_gelu
from puna.nn.layers import LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import ParallelLayer, PreLayerNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class GptNeoXLayerOptions(GeluLayerOptions):
    parallel: bool  # whether both halves read the layer's input


class Layer(PreLayerNormLayer):
    mixer: FusedSelfAttention = part()
    feed_forward: PlainFeedForward = part(choose=exact_or_tanh_gelu)  # type: ignore[assignment]


class HalvesInParallel(ParallelLayer):
    mixer: FusedSelfAttention = part()
    feed_forward_norm: LayerNorm = weight("ffn_norm", "hidden_size")
    feed_forward: PlainFeedForward = part(choose=exact_or_tanh_gelu)


def layer_kind(options: GptNeoXLayerOptions) -> type[Layer | HalvesInParallel]:
    return HalvesInParallel if options.parallel else Layer


class GptNeoX(Decoder):
    layers: Sequence[Layer | HalvesInParallel] = blocks("blk", choose=layer_kind)
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        parallel = flag(file, "use_parallel_residual", True)

        def own(_: int, layer: LayerOptions) -> LayerOptions:
            return GptNeoXLayerOptions(**vars(layer), parallel=parallel)

        options = TextOptions.read(file, TextDefaults(neox=True))
        return with_gelu(file, options, exact=True).each(own)
