"""Text model of PaddleOCR-VL: ERNIE 4.5, rotated in halves by time, height and width.

Cui et al., arXiv:2510.14528. Reference: `PaddleOCRTextModel` in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions, with_axes
from puna.nn.module import blocks
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class PaddleOcr(Decoder):
    layers: Sequence[PreNormLayer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return with_axes(file, TextOptions.read(file, TextDefaults(neox=True, rope_base=500000.0)))
