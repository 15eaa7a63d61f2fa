"""Mamba 1 and Falcon Mamba: only state spaces, so no cache that grows.

Gu and Dao, arXiv:2312.00752; Zuo et al., "Falcon Mamba", arXiv:2410.05355, which normalises the selected
inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.mamba import with_scan
from puna.model.options import TextDefaults, TextOptions
from puna.nn.mamba import Mamba
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import MixerLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(MixerLayer):
    mixer: Mamba = part()


class MambaDecoder(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        options = TextOptions.read(file, TextDefaults(rotates=False, all_attend=False, halves=True))
        return with_scan(file, options, lambda layer: layer.scan_state)
