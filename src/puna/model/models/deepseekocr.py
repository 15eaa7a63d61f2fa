"""Text model of DeepSeek-OCR: Llama rotated in halves, with experts in most layers, some of them shared.

Wei et al., arXiv:2510.18234, section 3.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.gguf.metadata import scalar
from puna.model.decoder import Decoder
from puna.model.options import TextDefaults, TextOptions
from puna.nn.experts import MixtureOfExperts, dense_or_shared
from puna.nn.feed_forward import FeedForward
from puna.nn.module import blocks, part
from puna.nn.transformer_layer import PreNormLayer
from puna.ops import Routing

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Layer(PreNormLayer):
    feed_forward: FeedForward | MixtureOfExperts = part(choose=dense_or_shared)


class DeepSeekOcr(Decoder):
    layers: Sequence[Layer] = blocks("blk")

    @classmethod
    def read_options(cls, file: GGUFFile) -> TextOptions:
        return TextOptions.read(file, defaults(file, neox=True))


def defaults(file: GGUFFile, *, neox: bool) -> TextDefaults:
    """Return the facts of the network; `neox` says whether rotated pairs are half a head apart."""
    return TextDefaults(
        neox=neox, norm_eps=1e-6, routing=Routing(0, normalize=False), expert_sizes=_sizes(file)
    )


def _sizes(file: GGUFFile) -> tuple[int, int]:
    """Return the sizes of an expert and of the shared ones from the last layer's tensors; files omit them."""
    block = f"blk.{scalar(file, 'block_count', 0) - 1}"
    down = (file.tensors.get(f"{block}.ffn_down_{kind}.weight") for kind in ("exps", "shexp"))
    expert, shared = (found.shape[-1] if found else 0 for found in down)
    return expert, shared
