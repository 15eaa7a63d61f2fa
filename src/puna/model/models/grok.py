"""Grok 1: GELU experts between norms, and caps on the scores of attention and of the router.

xAI, "Open release of Grok-1", 2024. Grok 2 has a dense network beside the experts, and caps its logits, too;
it also sharpens attention at late positions, which is not supported. llama.cpp neither does that nor caps the
router's scores.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from puna.errors import UnsupportedModelError
from puna.gguf.metadata import limit, positive, required, scalar
from puna.model.decoder import Decoder
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.experts import MixtureOfExperts, RoutingOptions
from puna.nn.feed_forward import GeluFeedForward
from puna.nn.layers import RMSNorm
from puna.nn.module import Module, blocks, part, weight
from puna.nn.transformer_layer import SandwichNormLayer
from puna.ops import Array, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Factors of Grok 1, which its first files leave out.
_EMBEDDING_SCALE, _LOGIT_SCALE, _ATTENTION_SCALE = 78.38367176906169, 0.5773502691896257, 0.08838834764831845
_CAP = 30.0  # of the scores of attention and of the router


@dataclass(frozen=True, kw_only=True)
class GrokLayerOptions(LayerOptions):
    router_softcap: float  # 0: none
    dense: bool  # whether a dense network is beside the experts


class CappingOptions(RoutingOptions, Protocol):
    @property
    def router_softcap(self) -> float:
        """Largest magnitude of the router's scores; 0: no limit."""


class CappedExperts(MixtureOfExperts):
    """Experts with GELU whose router's scores are capped."""

    options: CappingOptions
    activation = "geglu"

    def choose(self, hidden: Array) -> tuple[Array, Array]:
        scores, cap = self.router(hidden), self.options.router_softcap
        if cap:
            scores = self.ops.softcap(scores, cap)
        return self.ops.route(scores, self.options.routing, None)


class DenseAndCappedExperts(Module):
    """Sum of a dense network and the experts, divided by the square root of 2."""

    dense: GeluFeedForward = part()
    routed: CappedExperts = part()

    def forward(self, hidden: Array) -> Array:
        """Map [rows, hidden] to the same shape."""
        total: Array = (self.dense.forward(hidden) + self.routed.forward(hidden)) * math.sqrt(0.5)
        return total


def experts_kind(options: GrokLayerOptions) -> type[CappedExperts | DenseAndCappedExperts]:
    return DenseAndCappedExperts if options.dense else CappedExperts


class Layer(SandwichNormLayer):
    post_mixer_norm: RMSNorm = weight("attn_output_norm", "hidden_size")
    feed_forward: CappedExperts | DenseAndCappedExperts = part(choose=experts_kind)  # type: ignore[assignment]
    post_feed_forward_norm: RMSNorm = weight("layer_output_norm|post_ffw_norm", "hidden_size")


class Grok(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        sharpened = scalar(file, "attention.temperature_length", 0)
        if 0 < sharpened < required(file, "context_length"):
            raise UnsupportedModelError(
                f"{file.path}: attention that is sharpened after {sharpened} tokens "
                f"('{file.architecture}.attention.temperature_length') is not supported"
            )
        defaults = TextDefaults(
            neox=True, embedding_scale=_EMBEDDING_SCALE, attention_softcap=_CAP, routing=Routing(0)
        )
        options = TextOptions.read(file, defaults)
        scale = positive(file, "attention.output_scale", _ATTENTION_SCALE)
        cap = limit(file, "router_logit_softcapping", _CAP)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            return GrokLayerOptions(
                **(vars(layer) | {"attention_scale": scale}),
                router_softcap=cap,
                dense=f"blk.{index}.ffn_up.weight" in file.tensors,
            )

        logit_scale = positive(file, "logit_scale", _LOGIT_SCALE)
        return dataclasses.replace(options.each(own), logit_scale=logit_scale)
