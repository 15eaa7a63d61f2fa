"""Laguna of Poolside: many small experts beside a shared one, softplus gates after attention, windows.

Poolside, "Laguna", 2026. Layers with a window may have more query heads, and rotate in their own way. There
is a gate for each head, or for each of its values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions, read_windows
from puna.nn.attention import SeparatelyGatedSelfAttention
from puna.nn.experts import SharedAndRouted, dense_or_shared
from puna.nn.feed_forward import FeedForward
from puna.nn.layers import Linear
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class LagunaLayerOptions(LayerOptions):
    gates_heads: bool  # whether there is one gate for each head, not for each of its values

    @property
    def gate_size(self) -> int:
        return self.heads if self.gates_heads else self.mixed_size


class Attention(SeparatelyGatedSelfAttention):
    options: LagunaLayerOptions
    gate: Linear = weight("attn_gate|attn_g", "gate_size", "hidden_size")  # llama.cpp's and Ollama's names

    def loaded(self) -> None:
        self.ones = self.ops.array(np.ones(self.options.gate_size, np.float32))

    def gated(self, mixed: Array, gate: Array) -> Array:
        o, factors = self.options, self.ops.softplus(gate, self.ones)
        if not o.gates_heads:
            product: Array = mixed * factors
            return product
        [scaled] = self.ops.mix([mixed.reshape(-1, o.value_dim)], factors.reshape(-1, 1))
        joined: Array = scaled.reshape(-1, o.mixed_size)
        return joined


class Layer(PreNormLayer):
    mixer: Attention = part()
    feed_forward: FeedForward | SharedAndRouted = part(choose=dense_or_shared)  # type: ignore[assignment]


class Laguna(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(
            file,
            TextDefaults(neox=True, norm_eps=1e-6, rope_base=500000.0, routing=Routing(0, sigmoid=True)),
        )
        remembers = read_windows(file, options.block_count, period=4, full_first=True)
        # Ollama's converter states YaRN's whole magnitude instead of a factor on it.
        whole_magnitude = file.get("attention.gating_type") is not None

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            values = vars(layer) | {"remembers": remembers[index]}
            assert layer.rope is not None
            if isinstance(remembers[index], Window):
                values["rope"] = layer.rope.within_window(file, layer.head_dim, base=10000.0)
            elif whole_magnitude and layer.rope.yarn is not None:
                values["rope"] = layer.rope.with_magnitude(layer.rope.yarn.attention_factor)
            if f"blk.{index}.ffn_gate_inp.weight" not in file.tensors:
                values["experts"] = None
            names = (f"blk.{index}.{name}.weight" for name in ("attn_gate", "attn_g"))
            gate = next((file.tensors[name] for name in names if name in file.tensors), None)
            return LagunaLayerOptions(**values, gates_heads=gate is not None and gate.shape[0] == layer.heads)

        return options.each(own)
