"""Baichuan 1 and 2: Llama's network, in which only the 7B models rotate; the 13B models have ALiBi.

Baichuan Inc., arXiv:2309.10305. Files state neither: as for llama.cpp, the number of layers tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from puna.errors import UnsupportedModelError
from puna.gguf.metadata import block_count
from puna.model.alibi import read_reach
from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.distance import share_linear_bias
from puna.nn.module import blocks
from puna.nn.transformer_layer import PreNormLayer

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Whether keys and queries rotate, by the number of layers.
ROTATES: Final = {32: True, 40: False}


@dataclass(frozen=True, kw_only=True)
class BaichuanOptions(TextOptions):
    reach: int  # longest text with ALiBi; 0: positions rotate queries and keys


class Baichuan(Decoder):
    options: BaichuanOptions
    layers: Sequence[PreNormLayer] = blocks("blk")

    def loaded(self) -> None:
        super().loaded()
        if self.options.reach:
            share_linear_bias([layer.mixer for layer in self.layers], self.options.reach)

    @classmethod
    def read_options(cls, file: GGUFFile) -> BaichuanOptions:
        count = block_count(file)
        if count not in ROTATES:
            raise UnsupportedModelError(
                f"{file.path}: Baichuan with {count} layers: those with 32 rotate queries and keys and those "
                "with 40 have ALiBi, but the file does not say what others do"
            )
        rotates = ROTATES[count]
        return BaichuanOptions(
            **vars(TextOptions.read(file, TextDefaults(rotates=rotates))),
            reach=0 if rotates else read_reach(file),
        )
