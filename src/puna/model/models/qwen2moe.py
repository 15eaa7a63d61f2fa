"""Qwen 1.5 and 2 with experts: Qwen 2 with routed experts and a gated shared one.

Yang et al., arXiv:2407.10671.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.experts import GatedSharedAndRouted
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    feed_forward: GatedSharedAndRouted = part()  # type: ignore[assignment]


class Qwen2Moe(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(
            file, TextDefaults(neox=True, norm_eps=1e-6, rope_base=1e6, routing=Routing(0, normalize=False))
        )
