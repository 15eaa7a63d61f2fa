"""Stable LM: Llama with LayerNorms, rotated in part; the 12B model has its halves in parallel.

Bellagente et al., arXiv:2402.17834. The 12B model also normalises each head's queries and keys, with weights
for each head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import HeadLayerNorm, LayerNorm
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import ParallelLayer, PreLayerNormLayer
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class StableLmLayerOptions(LayerOptions):
    parallel: bool  # whether both halves read the layer's input, through one norm


class Attention(SelfAttention):
    query_norm: HeadLayerNorm | None = weight("attn_q_norm", "heads", "head_dim", optional=True)
    key_norm: HeadLayerNorm | None = weight("attn_k_norm", "kv_heads", "head_dim", optional=True)

    def place(self, query: Array, key: Array, positions: Array, rope: Rope | None) -> tuple[Array, Array]:
        query = query if self.query_norm is None else self.query_norm(query)
        return super().place(query, key if self.key_norm is None else self.key_norm(key), positions, rope)


class Layer(PreLayerNormLayer):
    mixer: Attention = part()
    feed_forward: FeedForward = part()


class HalvesInParallel(ParallelLayer):
    mixer: Attention = part()
    feed_forward: FeedForward = part()


def layer_kind(options: StableLmLayerOptions) -> type[Layer | HalvesInParallel]:
    return HalvesInParallel if options.parallel else Layer


class StableLm(Decoder):
    layers: Sequence[Layer | HalvesInParallel] = blocks("blk", choose=layer_kind)
    output_norm: LayerNorm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        def own(index: int, layer: LayerOptions) -> LayerOptions:
            # Files also have the key `use_parallel_residual`, but some claim it wrongly.
            parallel = f"blk.{index}.ffn_norm.weight" not in file.tensors
            return StableLmLayerOptions(**vars(layer), parallel=parallel)

        return TextOptions.read(file, TextDefaults(neox=True)).each(own)
