"""Text model of Llama 4 (Scout, Maverick), and MobileLLM models, which are dense variants.

Reference: `Llama4ForCausalLM` in Hugging Face transformers. Most layers rotate queries and keys and attend
within chunks of the context; layers without positions (NoPE) in between see all of it. GGUF files hold the
query and key projections as published: rotary pairs are already neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from puna.gguf.metadata import flag, number, positive, required, scalar
from puna.model.decoder import Decoder
from puna.model.layer_cache import ChunkedKeys, Everything
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.experts import MixtureOfExperts, SharedAndRouted
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import RMSNorm
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Rope, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Llama4LayerOptions(LayerOptions):
    qk_norm: bool  # whether layers with rotation normalise queries and keys
    temperature_scale: float  # of layers without rotation; 0: none
    floor_scale: float


class Attention(SelfAttention):
    options: Llama4LayerOptions

    def loaded(self) -> None:
        ones = self.ops.array(np.ones(self.options.head_dim, np.float32))
        self.unit_norm = RMSNorm(self.ops, ones, self.options.norm_eps)

    def place(self, query: Array, key: Array, positions: Array, rope: Rope | None) -> tuple[Array, Array]:
        o = self.options
        query, key = super().place(query, key, positions, rope)
        if rope is not None:
            return (self.unit_norm(query), self.unit_norm(key)) if o.qk_norm else (query, key)
        if o.temperature_scale:
            self.ops.temper_(query, positions, o.temperature_scale, o.floor_scale, 1)
        return query, key


class RoutedExperts(MixtureOfExperts):
    """Experts whose inputs, not outputs, are multiplied by their scores."""

    scale_inputs: ClassVar[bool] = True


class Experts(SharedAndRouted):
    routed: RoutedExperts = part()


def feed_forward_kind(options: LayerOptions) -> type[FeedForward | Experts]:
    return Experts if options.experts else FeedForward


class Layer(PreNormLayer):
    mixer: Attention = part()
    feed_forward: FeedForward | Experts = part(choose=feed_forward_kind)  # type: ignore[assignment]


class Llama4(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(
            file,
            TextDefaults(head_dim=128, rope_base=500000.0, routing=Routing(0, sigmoid=True, normalize=False)),
        )
        # llama.cpp marks MobileLLM this way: all layers rotate and attend to the whole context.
        everything = scalar(file, "attention.sliding_window", 1) == 0
        interval = 0 if everything else required(file, "no_rope_interval", 4)
        chunk = required(file, "attention.chunk_size", 8192)
        # Maverick has none; its files may say so or leave it out.
        qk_norm = flag(file, "use_qk_norm", scalar(file, "expert_count", 0) != 128)
        tempered = flag(file, "attention.temperature_tuning", True)
        temperature = number(file, "attention.scale", 0.1) if tempered else 0.0
        floor_scale = positive(file, "attention.floor_scale", 8192.0)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            rotates = not interval or (index + 1) % interval != 0
            values = vars(layer) | {
                "attention_scale": 1 / math.sqrt(layer.head_dim),  # here the key means something else
                "rope": layer.rope if rotates else None,
                "remembers": ChunkedKeys(chunk) if rotates and not everything else Everything(),
            }
            return Llama4LayerOptions(
                **values, qk_norm=qk_norm, temperature_scale=temperature, floor_scale=floor_scale
            )

        return options.each(own)
