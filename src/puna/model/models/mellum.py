"""Mellum 2 of JetBrains: Qwen 3 with experts, and a sliding window in most layers.

JetBrains, "Mellum 2", 2026. Layers with a window rotate by a base of their own, without scaling.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from puna.model.layer_cache import Window
from puna.model.models.qwen3 import Qwen3
from puna.model.options import LayerOptions, TextOptions, read_windows

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Mellum(Qwen3):
    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = super().read_options(file)
        remembers = read_windows(file, options.block_count, period=4)

        def own(index: int, layer: LayerOptions) -> LayerOptions:
            rope = layer.rope
            assert rope is not None
            if isinstance(remembers[index], Window):
                rope = rope.within_window(file, layer.head_dim, base=rope.base)
            return dataclasses.replace(layer, rope=rope, remembers=remembers[index])

        return options.each(own)
