"""Mamba 2, such as Codestral Mamba: only state spaces, so no cache that grows.

Dao and Gu, arXiv:2405.21060.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.mamba import with_mamba
from puna.model.options import TextDefaults, TextOptions
from puna.nn.mamba import Mamba2
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import MixerLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(MixerLayer):
    mixer: Mamba2 = part()


class Mamba2Decoder(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(rotates=False, all_attend=False, halves=True))
        return with_mamba(file, options, lambda layer: layer.mamba_state)
