"""MiniCPM 3: latent attention as in DeepSeek V2, and the scales of MiniCPM, which files do not state.

Hu et al., arXiv:2404.06395; the network is that of "openbmb/MiniCPM3-4B".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import invalid, required, scalar
from puna.model.decoder import Decoder
from puna.model.models.deepseek2 import LatentLayerOptions, check_latents
from puna.model.models.minicpm import with_scales_of_2b
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.latent_attention import JoinedLatentAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    mixer: JoinedLatentAttention = part()  # type: ignore[assignment]


class MiniCpm3(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        heads = required(file, "attention.head_count")
        usual = max(required(file, "embedding_length") // heads, 1)
        options = TextOptions.read(file, TextDefaults(neox=True, value_dim=usual))
        latent_dim = required(file, "attention.kv_lora_rank")
        rope_dim, head_dim = required(file, "rope.dimension_count"), options.layers[0].head_dim
        if rope_dim >= head_dim:
            raise invalid(file, "rope.dimension_count", f"is {rope_dim}, all {head_dim} dimensions of a head")
        query_rank = max(scalar(file, "attention.q_lora_rank", 0), 0)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            check_latents(file, index, latent_dim, rope_dim)
            return LatentLayerOptions(
                **vars(layer), latent_dim=latent_dim, rope_dim=rope_dim, query_rank=query_rank, joined=True,
                temperature_scale=0.0, original_context=1,
            )  # fmt: skip

        return with_scales_of_2b(options.each(own))
