"""Nemotron-H and Nemotron 3: each layer is only a Mamba 2, attention or a feed-forward network.

NVIDIA, "Nemotron-H", arXiv:2504.03624. Attention does not rotate. Feed-forward networks have no gates; those
with experts also have a shared one, and some project tokens to a smaller size for the routed ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.gguf.metadata import invalid, required
from puna.model.decoder import Decoder
from puna.model.layer_cache import Nothing, Remembered
from puna.model.mamba import MambaLayerOptions, attends_or_state, attention_or_mamba, with_mamba
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.attention import SelfAttention
from puna.nn.experts import ExpertLinear, SharedAndRouted, SquaredReluExperts
from puna.nn.feed_forward import SquaredReluFeedForward
from puna.nn.layers import Linear
from puna.nn.mamba import Mamba2
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import FeedForwardLayer, MixerLayer, TransformerLayer
from puna.ops import Array, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class NemotronLayerOptions(MambaLayerOptions):
    latent_size: int  # of the experts' inputs and outputs


class LatentExperts(SquaredReluExperts):
    """Experts that read and write a smaller projection of the hidden state."""

    to_latent: Linear | None = weight(
        "ffn_latent_down|ffn_latent_in", "latent_size", "hidden_size", optional=True
    )
    from_latent: Linear | None = weight(
        "ffn_latent_up|ffn_latent_out", "hidden_size", "latent_size", optional=True
    )
    up: ExpertLinear = weight("ffn_up_exps", "expert_count", "expert_feed_forward_size", "latent_size")
    down: ExpertLinear = weight("ffn_down_exps", "expert_count", "latent_size", "expert_feed_forward_size")

    def through(self, hidden: Array, chosen: Array, shares: Array) -> Array:
        latent = hidden if self.to_latent is None else self.to_latent(hidden)
        found = super().through(latent, chosen, shares)
        return found if self.from_latent is None else self.from_latent(found)


class NemotronSharedExpert(SquaredReluFeedForward):
    up: Linear = weight("ffn_up_shexp", "shared_feed_forward_size", "hidden_size")
    down: Linear = weight("ffn_down_shexp", "hidden_size", "shared_feed_forward_size")


class SharedAndLatent(SharedAndRouted):
    routed: LatentExperts = part()
    shared: NemotronSharedExpert = part()  # type: ignore[assignment]


def feed_forward_kind(options: LayerOptions) -> type[SquaredReluFeedForward | SharedAndLatent]:
    return SharedAndLatent if options.experts else SquaredReluFeedForward


class Mixing(MixerLayer):
    mixer: SelfAttention | Mamba2 = part(choose=attention_or_mamba)


class FeedingForward(FeedForwardLayer):
    feed_forward: SquaredReluFeedForward | SharedAndLatent = part(choose=feed_forward_kind)


def layer_kind(options: LayerOptions) -> type[Mixing | FeedingForward]:
    return FeedingForward if options.feed_forward_size else Mixing


class NemotronH(Decoder):
    layers: Sequence[TransformerLayer] = blocks("blk", choose=layer_kind)

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        routing = Routing(0, sigmoid=True, normalize=False)
        options = TextOptions.read(
            file, TextDefaults(rotates=False, routing=routing, all_attend=False, halves=True)
        )
        latent = required(file, "moe_latent_size", options.hidden_size)

        def own(_: int, layer: LayerOptions) -> LayerOptions:
            experts = layer.experts if layer.feed_forward_size else None
            return NemotronLayerOptions(
                **vars(dataclasses.replace(layer, experts=experts)), latent_size=latent
            )

        options = with_mamba(file, options, remembered).each(own)
        if all(isinstance(layer.remembers, Nothing) for layer in options.layers):
            raise invalid(file, "feed_forward_length", "leaves no layer that mixes tokens")
        return options


def remembered(layer: MambaLayerOptions) -> Remembered:
    return Nothing() if layer.feed_forward_size else attends_or_state(layer)
