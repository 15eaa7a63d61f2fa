"""Command models of Cohere with experts: Cohere 2 whose shared experts are averaged with the routed ones.

Layers with a window rotate, as do the first layers, which have no experts. Norms may be RMS norms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from puna.gguf.metadata import scalar
from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions, read_windows
from puna.nn.experts import MixtureOfExperts, RoutingOptions, SharedAndRouted
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import LayerNorm, RMSNorm
from puna.nn.module import WeightSource, blocks, part, weight
from puna.nn.transformer_layer import ParallelLayer
from puna.ops import Array, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Cohere2MoeLayerOptions(LayerOptions):
    by_rms: bool  # whether norms are RMS norms


@dataclass(frozen=True)
class Cohere2MoeOptions(TextOptions):
    by_rms: bool = False


class Norm(LayerNorm):
    """A LayerNorm without bias, or an RMS norm, as the options say."""

    @classmethod
    def from_source(  # type: ignore[override]
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> LayerNorm | RMSNorm | None:
        kind = RMSNorm if options.by_rms else LayerNorm
        return kind.from_source(source, name, shape, options)


class Averaged(SharedAndRouted):
    """The mean of the outputs of the shared experts and the routed ones."""

    def forward(self, hidden: Array) -> Array:
        mean: Array = super().forward(hidden) * 0.5
        return mean


def feed_forward_kind(options: RoutingOptions) -> type[FeedForward | MixtureOfExperts | Averaged]:
    if options.expert_count:
        return Averaged if options.shared_feed_forward_size else MixtureOfExperts
    return FeedForward


class Layer(ParallelLayer):
    mixer_norm: Norm = weight("attn_norm", "hidden_size")
    feed_forward_norm = None
    feed_forward: FeedForward | MixtureOfExperts | Averaged = part(choose=feed_forward_kind)


class Cohere2Moe(Decoder):
    layers: Sequence[Layer] = blocks("blk")
    output_norm: Norm = weight("output_norm", "hidden_size")  # type: ignore[assignment]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = Cohere2MoeOptions.read(
            file, TextDefaults(routing=Routing(0, sigmoid=True, normalize=False))
        )
        remembers = read_windows(file, options.block_count, period=4, full_first=True)
        by_rms = file.get("attention.layer_norm_rms_epsilon") is not None
        shared = scalar(file, "expert_shared_count", 0) > 0

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            rotates = isinstance(remembers[index], Window) or layer.experts is None
            experts = layer.experts
            if experts is not None and not shared:
                experts = dataclasses.replace(experts, shared_size=0)
            values = vars(layer) | {
                "rope": layer.rope if rotates else None, "remembers": remembers[index], "experts": experts
            }  # fmt: skip
            return Cohere2MoeLayerOptions(**values, by_rms=by_rms)

        return dataclasses.replace(options.each(own), by_rms=by_rms)
