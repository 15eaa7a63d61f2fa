"""Vision tower of Kimi K2.5 (MoonViT): pictures at their own size, positions both learned and rotated.

Reference: `Kimi_K25ForConditionalGeneration` in Hugging Face transformers. A picture is never enlarged; black
completes it to whole rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from puna.batch import Image, Input
from puna.errors import ModelError
from puna.gguf.metadata import invalid, required
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import blocks, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices, axial_rope
from puna.vision.layers.interpolation import sampled_positions
from puna.vision.layers.layers import LayerNormLayer, PatchEmbedding, Table, through
from puna.vision.options import MergedOptions, VisionOptions
from puna.vision.pixels import BICUBIC, HALVES, block_order, padded, stretched
from puna.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of, text
from puna.vision.towers.qwen import patch_places

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

#: Patches of the largest picture, and along a side of it. No key carries the latter.
_MOST_PATCHES: Final = 16384
_LONGEST_SIDE: Final = 512
#: More than any model has.
_MAX_PATCHES: Final = 1 << 17
_MAX_MERGE: Final = 8
_ROPE_BASE: Final = 10000.0
_MERGE: Final = "vision.projector.scale_factor"
_POSITIONS: Final = "v.position_embd.weight"


@dataclass(frozen=True, kw_only=True)
class KimiVisionOptions(MergedOptions):
    most_patches: int
    table_rows: int  # of position vectors
    table_columns: int


class KimiK25Vision(VisionTower):
    options: KimiVisionOptions
    without_effect = ("vision.image_min_pixels",)  # of llama.cpp, which enlarges small pictures
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    positions: Table = weight("v.position_embd", "table_rows", "table_columns", "hidden_size")
    layers: Sequence[LayerNormLayer] = blocks("v.blk")
    last_norm: LayerNorm = weight("v.post_ln", "hidden_size")
    merger_norm: LayerNorm = weight("mm.input_norm", "hidden_size")
    up: Linear = weight("mm.1", "merged_size", "merged_size")
    down: Linear = weight("mm.2", "text_size", "merged_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> KimiVisionOptions:
        options = VisionOptions.read(file, text_size, norm_eps=1e-5, mean=HALVES, std=HALVES)
        if options.head_dim % 4:
            key = "vision.attention.head_count"
            raise invalid(
                file, key, f"is {options.heads}: {options.head_dim} values of a head are no multiple of 4"
            )
        pixels = required(file, "vision.image_max_pixels", _MOST_PATCHES * options.patch_size**2)
        if (most := pixels // options.patch_size**2) > _MAX_PATCHES:
            raise invalid(file, "vision.image_max_pixels", f"is {pixels}, which is more than is supported")
        if (merge := required(file, _MERGE, 2)) > _MAX_MERGE:
            raise invalid(file, _MERGE, f"is {merge}, which is more than any model has")
        table = file.tensors.get(_POSITIONS)
        if table is None or len(table.shape) != 3:
            raise ModelError(f"{file.path}: tensor '{_POSITIONS}' should have rows and columns of vectors")
        return KimiVisionOptions(
            **vars(options),
            merge=merge,
            most_patches=most,
            table_rows=table.shape[0],
            table_columns=table.shape[1],
        )

    def loaded(self) -> None:
        super().loaded()
        # Files have rotated values side by side, those that columns rotate first.
        self._rope = axial_rope(self.options.head_dim, _ROPE_BASE, neox=False, axes=(1, 0))
        self._table = self.ops.numpy(self.positions.values)

    def use(self, tokenizer: Tokenizer) -> None:
        begin, content, end = (
            Input(marker(tokenizer, f"<|media_{name}|>")) for name in ("begin", "content", "end")
        )
        self._before = [begin, *text(tokenizer, "image"), content]
        self._after = [end, *text(tokenizer, "\n")]

    def prepare(self, picture: Picture) -> Prepared:
        o, (width, height) = self.options, picture.size
        patches = max(width // o.patch_size, 1) * max(height // o.patch_size, 1)
        longest = _LONGEST_SIDE * o.patch_size
        scale = min(1.0, math.sqrt(o.most_patches / patches), longest / width, longest / height)
        wide, high = (min(max(int(size * scale), 1), longest) for size in (width, height))
        rows, columns = -(-high // o.unit), -(-wide // o.unit)
        pixels = padded(stretched(picture, wide, high, BICUBIC), columns * o.unit, rows * o.unit)
        return Prepared(pixels[None], rows * columns, (rows, columns))

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o, (rows, columns) = self.options, prepared.grid
        (patches,) = self.patch_rows(prepared.pixels, o.merge)
        grid = rows * o.merge, columns * o.merge
        learned = sampled_positions(self._table, *grid)[block_order(*grid, o.merge)]
        hidden = self.embedding(patches) + self.ops.array(learned)
        yield
        places = patch_places(rows, columns, o.merge)
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = self.merger_norm(self.last_norm((yield from through(self.layers, hidden, reading))))
        return self.down(self.ops.gelu(self.up(hidden.reshape(-1, o.merged_size))))

    def place(self, image: Image) -> list[Input]:
        return kept_together([*self._before, *rows_of(image), *self._after], one_batch=False)

    @property
    def max_patches(self) -> int:
        """Number of patches of the largest image, with those that complete both sides."""
        side = 2 * self.options.merge
        return self.options.most_patches + side * (2 * _LONGEST_SIDE + side)
