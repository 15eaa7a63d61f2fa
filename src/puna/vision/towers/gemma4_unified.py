"""Vision of Gemma 4 12B, without layers of its own: each row is a square of pixels, normed and projected.

Reference: `Gemma4UnifiedVisionEmbedder` in Hugging Face transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.gguf.metadata import required
from puna.nn.layers import LayerNorm, unit_norm
from puna.nn.module import weight
from puna.ops import Array
from puna.vision.layers.attention import PatchKeys, Slices, pieces
from puna.vision.layers.layers import FlatPatchEmbedding
from puna.vision.options import three_numbers
from puna.vision.pixels import normalised, patches
from puna.vision.tower import Prepared
from puna.vision.towers.gemma4 import Gemma4Vision, Gemma4VisionOptions, read_row_size, read_table_size

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Of the three norms, and of the last one before the projection.
_EPS: Final = 1e-5
_LAST_EPS: Final = 1e-6
_FLOAT_BYTES: Final = 4


@dataclass(frozen=True, kw_only=True)
class Gemma4UnifiedOptions(Gemma4VisionOptions):
    @property
    def places(self) -> int:
        return 1

    @property
    def pixel_size(self) -> int:
        """Values of a row's pixels."""
        return self.channels * self.unit**2

    @property
    def bound_count(self) -> int:
        return 0


class Gemma4UnifiedVision(Gemma4Vision):
    options: Gemma4UnifiedOptions
    pixel_norm: LayerNorm = weight("v.patch_norm.1", "pixel_size")
    embedding: FlatPatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "unit", "unit")
    norm: LayerNorm = weight("v.patch_norm.2", "hidden_size")
    placed_norm: LayerNorm = weight("v.patch_norm.3", "hidden_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Gemma4UnifiedOptions:
        patch_size = required(file, "vision.patch_size", 16)
        merge, most = read_row_size(file, patch_size)
        return Gemma4UnifiedOptions(
            image_size=patch_size * merge,
            patch_size=patch_size,
            hidden_size=required(file, "vision.embedding_length"),
            text_size=text_size,
            norm_eps=_EPS,
            mean=three_numbers(file, "vision.image_mean", (0.0,) * 3),
            std=three_numbers(file, "vision.image_std", (1.0,) * 3),
            layers=(),
            merge=merge,
            max_pixels=most,
            table_size=read_table_size(file, 1),
            rope_base=0.0,
        )

    def loaded(self) -> None:
        self.keys = PatchKeys(self.ops, 1, 1)  # nothing attends
        self._row_norm = unit_norm(self.ops, self.options.hidden_size, _LAST_EPS)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o, ops, (rows, columns) = self.options, self.ops, prepared.grid
        (picture,) = prepared.pixels
        squares = normalised(patches(picture, o.unit), o.mean, o.std)
        row, column = (axis.reshape(-1).astype(np.int32) for axis in np.mgrid[:rows, :columns])
        by_column, by_row = self.positions.values[0], self.positions.values[1]
        found = []
        for begin, end in pieces(len(squares), slice_rows):
            hidden = self.norm(self.embedding(self.pixel_norm(ops.array(squares[begin:end]))))
            places = by_column[ops.array(column[begin:end])] + by_row[ops.array(row[begin:end])]
            found.append(self.projection(self._row_norm(self.placed_norm(hidden + places))))
            yield
        return ops.concatenate(found)

    def memory_bytes(self, slice_rows: int) -> int:
        o = self.options
        working = min(slice_rows, o.max_rows) * (o.pixel_size + 4 * o.hidden_size)
        return _FLOAT_BYTES * (o.max_rows * (2 * o.pixel_size + o.text_size) + working)
