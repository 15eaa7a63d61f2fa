"""The eyes of Qwen2-VL: layers of CLIP, all of which look at everything.

Wang et al., arXiv:2409.12191, section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from puna.images.pixels import CLIP_MEAN, CLIP_STD
from puna.model.vision.options import VisionOptions, with_clip_layers
from puna.model.vision.qwen import FramesEmbedding, QwenTower, QwenVisionOptions, patch_places
from puna.model.vision.tower import Prepared
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import blocks, weight
from puna.nn.vision.attention import Slices
from puna.nn.vision.clip import clip_layer_kind
from puna.nn.vision.layers import LayerNormLayer, through
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class Qwen2Vision(QwenTower):
    activations = ("gelu", "quick gelu")
    embedding: FramesEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    layers: Sequence[LayerNormLayer] = blocks("v.blk", choose=clip_layer_kind)
    norm: LayerNorm = weight("v.post_ln", "hidden_size")
    up: Linear = weight("mm.0", "merged_size", "merged_size")
    down: Linear = weight("mm.2", "text_size", "merged_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> QwenVisionOptions:
        options = VisionOptions.read(
            file, text_size, image_size=560, norm_eps=1e-6, mean=CLIP_MEAN, std=CLIP_STD,
            feed_forward=("v.blk.0.ffn_up.weight",),
        )  # fmt: skip
        return QwenVisionOptions(**with_clip_layers(file, options), **QwenVisionOptions.read_sizes(file))

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        (patches,) = self.patch_rows(prepared.pixels, o.merge)
        hidden = self.embedding(patches)
        yield
        places = patch_places(*prepared.grid, o.merge)
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = self.norm((yield from through(self.layers, hidden, reading)))
        return self.down(self.ops.gelu(self.up(self.merged(hidden))))
