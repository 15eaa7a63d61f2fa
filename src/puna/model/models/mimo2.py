"""MiMo-V2 of Xiaomi: windows with sinks in most layers, values narrower than keys, experts, prediction heads.

LLM-Core Xiaomi, "MiMo-V2-Flash Technical Report", 2026. Layers with a window have more key/value heads and
another base of rotation, and every prediction head is such a layer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from puna.batch import BatchArrays
from puna.gguf.metadata import flags, positive, required
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions
from puna.nn.attention import FusedSelfAttention, SelfAttention
from puna.nn.module import blocks, part, weight
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Rope, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class MiMo2LayerOptions(LayerOptions):
    value_scale: float
    fused: bool  # whether queries, keys and values are one tensor


class Attention(SelfAttention):
    options: MiMo2LayerOptions
    sinks: Array | None = weight("attn_sinks", "heads", optional=True)

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = super().forward(hidden, batch, cache, rope, rows)
        scaled: Array = mixed * self.options.value_scale  # equals scaling the values
        return scaled


class FusedAttention(Attention, FusedSelfAttention):
    """Attention with one tensor for queries, keys and values."""


def mixer_kind(options: MiMo2LayerOptions) -> type[Attention]:
    return FusedAttention if options.fused else Attention


class Layer(PreNormLayer):
    mixer: Attention = part(choose=mixer_kind)


class MiMo2(Decoder):
    heads_read_normed: ClassVar[bool] = False
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(
            file, TextDefaults(neox=True, rope_base=5e6, routing=Routing(0, sigmoid=True), predicts=True)
        )
        windowed = flags(file, "attention.sliding_window_pattern", required(file, "block_count"))
        # The file's size does not count the attending token itself.
        window = Window(required(file, "attention.sliding_window") + 1)
        local_base = positive(file, "rope.freq_base_swa", 10000.0)
        value_scale = positive(file, "attention.value_scale", 1.0)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            assert layer.rope is not None
            values = vars(layer)
            if windowed[index]:
                local = dataclasses.replace(layer.rope, base=local_base)
                values = values | {"rope": local, "remembers": window}
            if f"blk.{index}.ffn_gate_inp.weight" not in file.tensors:
                values = values | {"experts": None}
            fused = f"blk.{index}.attn_qkv.weight" in file.tensors
            return MiMo2LayerOptions(**values, value_scale=value_scale, fused=fused)

        return options.each(own)
