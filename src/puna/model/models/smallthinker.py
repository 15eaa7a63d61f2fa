"""SmallThinker of SJTU: experts that the layer's input chooses, so that they can be read ahead of attention.

SJTU and Zenergize AI, "SmallThinker", arXiv:2507.20984. In models with a window, every fourth layer attends
to all positions, and does not rotate. llama.cpp takes the window for 4096 positions, whatever the file says.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from puna.batch import BatchArrays
from puna.kvcache.cache import Cache
from puna.model.decoder import Decoder
from puna.model.layer_cache import Window
from puna.model.options import LayerOptions, TextDefaults, TextOptions, read_windows
from puna.nn.attention import SelfAttention
from puna.nn.experts import ReluExperts
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Array, Rope, Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Layers from one without rotation to the next.
_PERIOD: Final = 4


class Layer(PreNormLayer):
    mixer: SelfAttention = part()
    feed_forward: ReluExperts = part()

    def forward(
        self, hidden: Array, batch: BatchArrays, cache: Cache, rope: Rope | None, rows: Array | None
    ) -> Array:
        mixed = self.mixer.forward(self.mixer_norm(hidden), batch, cache, rope, rows)
        residual = hidden if rows is None else hidden[rows]
        hidden, normed = self.feed_forward_norm.after_adding(mixed, residual)
        total: Array = hidden + self.feed_forward.through(normed, *self.feed_forward.choose(residual))
        return total


class SmallThinker(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(
            file, TextDefaults(neox=True, norm_eps=1e-6, routing=Routing(0, sigmoid=True))
        )
        remembers = read_windows(file, options.block_count, period=_PERIOD, full_first=True)
        has_windows = any(isinstance(each, Window) for each in remembers)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            rotates = index % _PERIOD > 0 or not has_windows
            rope = layer.rope if rotates else None
            return dataclasses.replace(layer, rope=rope, remembers=remembers[index])

        return options.each(own)
