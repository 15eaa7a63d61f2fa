"""Vision tower of dots.ocr: Qwen2.5-VL's without windows, on single pictures, with a norm after the patches.

Its rows have positions like tokens. References: the model's published code, and `Dots3NoteVisionModel` in
Hugging Face transformers, which is the same with norms of heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from puna.batch import Image, Input
from puna.nn.layers import LayerNorm, Linear, RMSNorm
from puna.nn.module import blocks, weight
from puna.ops import Array, Backend
from puna.vision.layers.attention import Slices
from puna.vision.layers.layers import PatchEmbedding, RMSNormLayer, through
from puna.vision.options import VisionOptions
from puna.vision.pixels import CLIP_MEAN, CLIP_STD
from puna.vision.tower import Prepared, kept_together, rows_of
from puna.vision.towers.qwen import QwenTower, QwenVisionOptions, patch_places

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_MIN_PIXELS: Final = 3136
_MAX_PIXELS: Final = 11289600


class MergerNorm(LayerNorm):
    """Norm before patches are merged, with an epsilon of its own."""

    def __init__(self, ops: Backend, weight: Array, bias: Array | None, eps: float) -> None:
        super().__init__(ops, weight, bias, 1e-6)


class DotsOcrVision(QwenTower):
    activations = ("silu",)
    markers = ("<|img|>", "<|endofimg|>")
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    embedding_norm: RMSNorm = weight("v.norm_embd", "hidden_size")
    layers: Sequence[RMSNormLayer] = blocks("v.blk")
    norm: RMSNorm | None = weight("mm.post_norm", "hidden_size", optional=True)
    merger_norm: MergerNorm = weight("mm.input_norm", "hidden_size")
    up: Linear = weight("mm.0", "merged_size", "merged_size")
    down: Linear = weight("mm.2", "text_size", "merged_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> QwenVisionOptions:
        options = VisionOptions.read(
            file, text_size, image_size=560, norm_eps=1e-5, mean=CLIP_MEAN, std=CLIP_STD,
            feed_forward=("v.blk.0.ffn_gate.weight",),
        )  # fmt: skip
        sizes = QwenVisionOptions.read_sizes(
            file, min_pixels=_MIN_PIXELS, max_pixels=_MAX_PIXELS, merge_key="vision.projector.scale_factor"
        )
        return QwenVisionOptions(**vars(options), **sizes)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        (patches,) = self.patch_rows(prepared.pixels, self.options.merge)
        hidden = self.embedding_norm(self.embedding(patches))
        yield
        places = patch_places(*prepared.grid, self.options.merge)
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = yield from through(self.layers, hidden, reading)
        if self.norm is not None:
            hidden = self.norm(hidden)
        return self.down(self.ops.gelu(self.up(self.merged(self.merger_norm(hidden)))))

    def place(self, image: Image) -> list[Input]:
        return kept_together([self._begin, *rows_of(image), self._end], one_batch=False)
