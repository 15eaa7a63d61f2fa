"""Layers of CLIP (Radford et al., arXiv:2103.00020) as converters have written them."""

from __future__ import annotations

from dataclasses import dataclass

from puna.nn.layers import Linear
from puna.nn.module import part, weight
from puna.nn.vision.layers import (
    Activation,
    ExactGeluFeedForward,
    GeluFeedForward,
    LayerNormLayer,
    VisionLayerOptions,
    quick_gelu,
)


class QuickGeluFeedForward(GeluFeedForward):
    activation: Activation = staticmethod(quick_gelu)


class SwappedFeedForward(QuickGeluFeedForward):
    """As the first converters wrote it: what leads up is called down."""

    up: Linear = weight("ffn_down", "feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_up", "hidden_size", "feed_forward_size")


class QuickLayer(LayerNormLayer):
    feed_forward: QuickGeluFeedForward = part()


class SwappedLayer(LayerNormLayer):
    feed_forward: SwappedFeedForward = part()


class ExactLayer(LayerNormLayer):
    feed_forward: ExactGeluFeedForward = part()


@dataclass(frozen=True, kw_only=True)
class ClipLayerOptions(VisionLayerOptions):
    kind: type[LayerNormLayer]


def clip_layer_kind(options: ClipLayerOptions) -> type[LayerNormLayer]:
    return options.kind
