"""Step 3.5 of StepFun: gated heads, more of them in layers with a window, experts with limited activations.

StepFun, "Step 3.5 Flash", 2026. In files the weights of norms already include the reference's 1, and limits
apply to what the activation returns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.gguf.metadata import flags, invalid, limits, required
from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.model.rope import RopeOptions
from puna.nn.attention import SeparatelyGatedSelfAttention
from puna.nn.bounded import BoundedFeedForward, SharedAndBounded, bounded_kind
from puna.nn.layers import Linear
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Step35LayerOptions(LayerOptions):
    expert_limit: float  # of routed experts; 0: none
    shared_limit: float  # of the shared expert, or of a layer without experts


class Step35Options(TextOptions):
    @property
    def rope_pairs(self) -> int:
        # The table of factors has room for the layers with a window, which do not use it.
        return max(layer.rope.pairs for layer in self.layers if layer.rope)


class Attention(SeparatelyGatedSelfAttention):
    """Attention with a sigmoid gate for each head."""

    gate: Linear = weight("attn_gate", "heads", "hidden_size")

    def gated(self, mixed: Array, gate: Array) -> Array:
        o = self.options
        scaled = self.ops.sigmoid_gate(mixed.reshape(-1, o.value_dim), gate.reshape(-1, 1))
        joined: Array = scaled.reshape(-1, o.heads * o.value_dim)
        return joined


class Layer(PreNormLayer):
    mixer: Attention = part()
    feed_forward: BoundedFeedForward | SharedAndBounded = part(choose=bounded_kind)  # type: ignore[assignment]


class Step35(Decoder):
    heads_read_normed: ClassVar[bool] = False
    layers: Sequence[Layer] = blocks("blk")

    def loaded(self) -> None:
        if self.rope_factors is not None:
            used = max((rope.pairs for rope in self._full_ropes()), default=0)
            self.rope_factors = self.rope_factors[:used]
        super().loaded()

    def _full_ropes(self) -> list[RopeOptions]:
        return [layer.rope for layer in self.options.layers if layer.rope and layer.rope.factored]

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        defaults = TextDefaults(neox=True, norm_eps=1e-5, routing=Routing(0, sigmoid=True), predicts=True)
        options = TextOptions.read(file, defaults)
        count = required(file, "block_count")
        windowed = flags(file, "attention.sliding_window_pattern", count)
        window = Window(required(file, "attention.sliding_window"))
        expert_limits = limits(file, "swiglu_clamp_exp", count)
        shared_limits = limits(file, "swiglu_clamp_shexp", count)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            assert layer.rope is not None
            values = vars(layer)
            if windowed[index]:
                rope = layer.rope.within_window(file, layer.head_dim, base=layer.rope.base)
                values = values | {"rope": rope, "remembers": window}
            else:  # half of the rotated values that the file states
                if layer.rope.dims % 4:
                    complaint = f"should be a multiple of 4, but is {layer.rope.dims}"
                    raise invalid(file, "rope.dimension_count", complaint)
                values = values | {"rope": dataclasses.replace(layer.rope, dims=layer.rope.dims // 2)}
            if f"blk.{index}.ffn_gate_inp.weight" not in file.tensors:
                values = values | {"experts": None}
            return Step35LayerOptions(
                **values, expert_limit=expert_limits[index], shared_limit=shared_limits[index]
            )

        return Step35Options(**vars(options.each(own)))
