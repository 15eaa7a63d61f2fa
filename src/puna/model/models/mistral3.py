"""Mistral 3 and Ministral 3: Llama with YaRN and queries that sharpen beyond the original context.

Mistral AI, "Introducing Mistral 3", 2025; Nakanishi, arXiv:2501.19399, for the sharpening.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.gguf.metadata import first_of, limit, scalar
from puna.model.decoder import Decoder
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.model.rope import read_magnitude
from puna.nn.attention import SelfAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Mistral3LayerOptions(LayerOptions):
    temperature_scale: float  # 0: no sharpening
    original_context: int


class Attention(SelfAttention):
    options: Mistral3LayerOptions

    def place(self, query: Array, key: Array, positions: Array, rope: Rope | None) -> tuple[Array, Array]:
        query, key = super().place(query, key, positions, rope)
        o = self.options
        if o.temperature_scale:
            self.ops.temper_(query, positions, o.temperature_scale, o.original_context, 0)
        return query, key


class Layer(PreNormLayer):
    mixer: Attention = part()


class Mistral3(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(rope_base=1e6))
        beta = first_of(file, "attention.temperature_scale", "rope.scaling_beta")
        original = scalar(file, "rope.scaling.original_context_length", 0)
        # Older files say nothing about it.
        temperature = limit(file, beta, 0.1) if original else 0.0
        magnitude = read_magnitude(file)

        def own(_: int, layer: LayerOptions) -> LayerOptions:
            rope = layer.rope
            if magnitude is not None and rope is not None and rope.yarn is not None:
                rope = rope.with_magnitude(magnitude)
            values = vars(layer) | {"rope": rope}
            return Mistral3LayerOptions(
                **values, temperature_scale=temperature, original_context=max(original, 1)
            )

        return options.each(own)
