"""Granite with windows, dense or with experts: Granite 3 with attention sinks, and windows in most layers.

Granite Team, IBM, "Granite Swash", 2026. Layers with a window, and others, may lack rotation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import flags
from puna.model.models import granite
from puna.model.options import LayerOptions, TextOptions, read_windows
from puna.nn.attention import SelfAttention
from puna.nn.experts import MixtureOfExperts, RoutingOptions, SharedAndRouted, SharedExpert, dense_or_experts
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import Linear, StackedLinear
from puna.nn.module import blocks, part, weight
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Attention(SelfAttention):
    sinks: Array = weight("attn_sinks", "heads")


class JoinedSharedExpert(SharedExpert):
    """The shared expert, whose gate and up weights are one tensor."""

    gate = up = None  # type: ignore[assignment]
    joined: StackedLinear = weight(
        "ffn_up_shexp", "shared_feed_forward_size", "shared_feed_forward_size", "hidden_size"
    )

    def linears(self) -> Sequence[Linear]:
        return self.joined.linears


class JoinedSharedAndRouted(SharedAndRouted):
    shared: JoinedSharedExpert = part()


def feed_forward_kind(options: RoutingOptions) -> type[FeedForward | MixtureOfExperts | SharedAndRouted]:
    shared = options.expert_count and options.shared_feed_forward_size
    return JoinedSharedAndRouted if shared else dense_or_experts(options)


class Layer(granite.Layer):
    mixer: Attention = part()
    feed_forward: FeedForward | MixtureOfExperts | SharedAndRouted = part(choose=feed_forward_kind)


class GraniteSwa(granite.Granite):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = super().read_options(file)
        remembers = read_windows(file, options.block_count, period=4, full_first=True)
        key = "attention.rope_pattern"
        rotated = (
            (True,) * options.block_count if file.get(key) is None else flags(file, key, options.block_count)
        )

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            rope = layer.rope if rotated[index] else None
            return dataclasses.replace(layer, rope=rope, remembers=remembers[index])

        return options.each(own)
