"""Hy 3 of Tencent: Qwen 3's attention, and many small experts beside a shared one after the first layers.

Tencent Hunyuan Team, "Hy3-preview", 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.models.dots1 import Layer
from puna.model.options import TextDefaults, TextOptions
from puna.nn.module import blocks
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class HyV3(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        routing = Routing(0, sigmoid=True)
        return TextOptions.read(
            file, TextDefaults(neox=True, rope_base=11_158_840.0, routing=routing, predicts=True)
        )
