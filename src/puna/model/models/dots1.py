"""dots.llm1 of Xiaohongshu: DeepSeek V3's experts beside Qwen 3's attention.

rednote-hilab, arXiv:2506.05767.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.attention import NormedSelfAttention
from puna.nn.experts import SharedAndRouted, dense_or_shared
from puna.nn.feed_forward import FeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    mixer: NormedSelfAttention = part()
    feed_forward: FeedForward | SharedAndRouted = part(choose=dense_or_shared)  # type: ignore[assignment]


class Dots1(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(
            file, TextDefaults(neox=True, norm_eps=1e-6, routing=Routing(0, sigmoid=True, normalize=False))
        )
