"""Layers of CLIP (Radford et al., arXiv:2103.00020) as converters have written them."""

from __future__ import annotations

from dataclasses import dataclass

from puna.nn.module import part
from puna.nn.vision.layers import (
    Activation,
    ExactGeluFeedForward,
    GeluFeedForward,
    LayerNormLayer,
    SwappedFeedForward,
    VisionLayerOptions,
    quick_gelu,
)


class QuickGeluFeedForward(GeluFeedForward):
    activation: Activation = staticmethod(quick_gelu)


class SwappedQuickFeedForward(SwappedFeedForward):
    activation: Activation = staticmethod(quick_gelu)


def quick_feed_forward(options: VisionLayerOptions) -> type[GeluFeedForward]:
    return SwappedQuickFeedForward if options.swapped else QuickGeluFeedForward


class QuickLayer(LayerNormLayer):
    feed_forward: GeluFeedForward = part(choose=quick_feed_forward)


class ExactLayer(LayerNormLayer):
    feed_forward: ExactGeluFeedForward = part()


@dataclass(frozen=True, kw_only=True)
class ClipLayerOptions(VisionLayerOptions):
    kind: type[LayerNormLayer]


def clip_layer_kind(options: ClipLayerOptions) -> type[LayerNormLayer]:
    return options.kind
