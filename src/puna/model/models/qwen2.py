"""Qwen 2 and 2.5: Llama with biases on queries, keys and values, rotated in halves.

Yang et al., arXiv:2407.10671.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.module import blocks
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Qwen2(Decoder):
    layers: Sequence[PreNormLayer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, TextDefaults(neox=True, norm_eps=1e-6, rope_base=1e6))
