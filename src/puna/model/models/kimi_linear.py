"""Kimi Linear: delta networks with a decay per key entry in most layers, latent attention in a few.

Kimi Team, arXiv:2510.26692. Nothing is rotated, not even the part of keys that latent attention calls
rotated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.gguf.metadata import check_extent, invalid, required, scalar
from puna.model.decoder import Decoder
from puna.model.layer_cache import State
from puna.model.models.deepseek2 import LatentLayerOptions, check_latents
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.convolution import convolution_states
from puna.nn.experts import SharedAndRouted, dense_or_shared
from puna.nn.feed_forward import FeedForward
from puna.nn.latent_attention import JoinedLatentAttention, LatentAttention
from puna.nn.linear_attention import KimiDeltaAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import MemoryShape, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class KimiLayerOptions(LatentLayerOptions):
    memory_dim: int  # of keys and values
    taps: int  # inputs a convolution reads, including the newest
    tiled_heads: bool = False  # each head has its own key

    @property
    def key_heads(self) -> int:
        return self.heads

    @property
    def value_heads(self) -> int:
        return self.heads

    @property
    def delta_key_size(self) -> int:
        return self.heads * self.memory_dim

    @property
    def delta_value_size(self) -> int:
        return self.heads * self.memory_dim


def mixer_kind(options: KimiLayerOptions) -> type[LatentAttention | KimiDeltaAttention]:
    if not options.kv_heads:
        return KimiDeltaAttention
    return JoinedLatentAttention if options.joined else LatentAttention


class Layer(PreNormLayer):
    mixer: LatentAttention | KimiDeltaAttention = part(choose=mixer_kind)  # type: ignore[assignment]
    feed_forward: FeedForward | SharedAndRouted = part(choose=dense_or_shared)  # type: ignore[assignment]


class KimiLinear(Decoder):
    rotates: ClassVar[bool] = False

    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        names = "attention.key_length_mla", "attention.value_length_mla"
        routing = Routing(0, sigmoid=True, normalize=True)
        options = TextOptions.read(
            file, TextDefaults(head_dims=names, rotates=cls.rotates, routing=routing, all_attend=False)
        )
        latent_dim, unrotated = required(file, "attention.kv_lora_rank"), cls.read_unrotated(file)
        query_rank = max(scalar(file, "attention.q_lora_rank", 0), 0)
        dim, taps = required(file, "kda.head_dim"), required(file, "ssm.conv_kernel")
        if unrotated >= (head_dim := options.layers[0].head_dim):
            raise invalid(
                file, "rope.dimension_count", f"is {unrotated}, all {head_dim} dimensions of a head"
            )
        if taps < 2:
            raise invalid(file, "ssm.conv_kernel", f"is {taps}, which is too short for a convolution")

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            values = vars(layer)
            if layer.kv_heads:
                check_latents(file, index, latent_dim, unrotated)
            else:
                size = layer.heads * dim
                heads = {"attention.head_count": layer.heads, "kda.head_dim": dim}
                check_extent(file, f"blk.{index}.ssm_f_b.weight", 0, heads)
                check_extent(file, f"blk.{index}.ssm_conv1d_q.weight", -1, {"ssm.conv_kernel": taps})
                memory = "memory", MemoryShape(layer.heads, dim, dim)
                values = values | {"remembers": State((*convolution_states(taps, size, size, size), memory))}
            return KimiLayerOptions(
                **values, latent_dim=latent_dim, rope_dim=unrotated, query_rank=query_rank,
                joined=f"blk.{index}.attn_kv_b.weight" in file.tensors, temperature_scale=0.0,
                original_context=1, memory_dim=dim, taps=taps,
            )  # fmt: skip

        return options.each(own)

    @classmethod
    def read_unrotated(cls, file: GGUFFile) -> int:
        """Return the size of the part of a latent attention's keys that is called rotated."""
        return required(file, "rope.dimension_count")
