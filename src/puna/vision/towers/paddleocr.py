"""Vision tower of PaddleOCR-VL: SigLIP on pictures of about their own size, with rotation beside positions.

Cui et al., arXiv:2510.14528. Reference: `PaddleOCRVisionModel` in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from puna.gguf.metadata import table_rows
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import blocks, weight
from puna.ops import Array
from puna.vision.layers.attention import Slices
from puna.vision.layers.interpolation import sampled_positions
from puna.vision.layers.layers import LayerNormLayer, PatchEmbedding, ProjectorNorm, Table, through
from puna.vision.options import VisionOptions
from puna.vision.tower import Prepared, square_root
from puna.vision.towers.qwen import QwenTower, QwenVisionOptions, patch_places

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_MIN_PIXELS: Final = 384**2
_MAX_PIXELS: Final = 1536**2


@dataclass(frozen=True, kw_only=True)
class PaddleOcrVisionOptions(QwenVisionOptions):
    positions: int  # learned, of a square of patches


class PaddleOcrVision(QwenTower):
    options: PaddleOcrVisionOptions
    markers = ("<|IMAGE_START|>", "<|IMAGE_END|>")
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    positions: Table = weight("v.position_embd", "positions", "hidden_size")
    layers: Sequence[LayerNormLayer] = blocks("v.blk")
    norm: LayerNorm = weight("v.post_ln", "hidden_size")
    merger_norm: ProjectorNorm = weight("mm.input_norm", "hidden_size")
    up: Linear = weight("mm.1", "merged_size", "merged_size")
    down: Linear = weight("mm.2", "text_size", "merged_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> PaddleOcrVisionOptions:
        options = VisionOptions.read(file, text_size, feed_forward=("v.blk.0.ffn_up.weight",))
        sizes = PaddleOcrVisionOptions.read_sizes(file, min_pixels=_MIN_PIXELS, max_pixels=_MAX_PIXELS)
        positions = table_rows(file, "v.position_embd.weight")
        return PaddleOcrVisionOptions(**vars(options), **sizes, positions=positions)

    def loaded(self) -> None:
        super().loaded()
        side = square_root(self.options.positions)
        self._table = self.ops.numpy(self.positions.values).reshape(side, side, -1)

    def sized(self, width: int, height: int) -> tuple[int, int]:
        unit = self.options.unit
        if height < unit:  # enlarge to one row first
            width, height = round(width * unit / height), unit
        if width < unit:
            width, height = unit, round(height * unit / width)
        return super().sized(width, height)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        (patches,) = self.patch_rows(prepared.pixels, o.merge)
        places = patch_places(*prepared.grid, o.merge)
        height, width = (size * o.merge for size in prepared.grid)
        learned = sampled_positions(self._table, height, width, cubic=False)
        hidden = self.embedding(patches) + self.ops.array(learned[places[:, 0] * width + places[:, 1]])
        yield
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = self.norm((yield from through(self.layers, hidden, reading)))
        return self.down(self.ops.gelu(self.up(self.merged(self.merger_norm(hidden)))))
