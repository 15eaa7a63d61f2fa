"""Mistral 3 and Ministral 3: Llama extended by YaRN, with queries that sharpen beyond the original context.

Mistral AI, "Introducing Mistral 3", 2025; Nakanishi, arXiv:2501.19399, for the sharpening.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.metadata import first_of, limit, number, positive, scalar
from puna.model.options import LayerOptions, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Mistral3LayerOptions(LayerOptions):
    temperature_scale: float  # 0: queries do not sharpen
    original_context: int


class Attention(SelfAttention):
    options: Mistral3LayerOptions

    def place(self, query: Array, key: Array, positions: Array, rope: Rope | None) -> tuple[Array, Array]:
        query, key = super().place(query, key, positions, rope)
        o = self.options
        if o.temperature_scale:  # counted from 0 here, from 1 in Llama 4
            self.ops.temper_(query, positions + -1, o.temperature_scale, o.original_context)
        return query, key


class Layer(PreNormLayer):
    mixer: Attention = part()


class Mistral3(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, rope_base=1e6)
        beta = first_of(file, "attention.temperature_scale", "rope.scaling_beta")
        original = scalar(file, "rope.scaling.original_context_length", 0)
        # Files of before there were such models say nothing of it.
        temperature = limit(file, beta, 0.1) if original else 0.0
        magnitude = _magnitude(file)

        def own(_: int, layer: LayerOptions) -> LayerOptions:
            rope = layer.rope
            if magnitude is not None and rope is not None and rope.yarn is not None:
                rope = rope.with_magnitude(magnitude)
            values = vars(layer) | {"rope": rope}
            return Mistral3LayerOptions(
                **values, temperature_scale=temperature, original_context=max(original, 1)
            )

        return options.each(own)


def _magnitude(file: GGUFFile) -> float | None:
    """What YaRN multiplies cosines and sines by, if the file says it; else it follows from the factor."""
    if number(file, "rope.scaling.yarn_log_multiplier", 0.0):
        return 1.0
    scale, of_all = number(file, "rope.scaling.mscale", 0.0), number(file, "rope.scaling.mscale_all_dim", 0.0)
    if not (scale and of_all):
        return None
    grown = 0.1 * math.log(positive(file, "rope.scaling.factor", 1.0))
    return (1 + scale * grown) / (1 + of_all * grown)
