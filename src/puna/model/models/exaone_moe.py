"""K-EXAONE of LG: EXAONE 4's attention, norms before each half of a layer, DeepSeek V3's experts.

LG AI Research, "K-EXAONE Technical Report", 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.models.dots1 import Layer
from puna.model.options import TextDefaults, TextOptions, rotated_within_windows
from puna.nn.module import blocks
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class ExaoneMoe(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        routing = Routing(0, sigmoid=True)
        options = TextOptions.read(file, TextDefaults(neox=True, rope_base=1e6, routing=routing))
        return rotated_within_windows(file, options, or_everywhere=True)
