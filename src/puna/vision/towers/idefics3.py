"""Vision tower of SmolVLM and Idefics 3: SigLIP on each tile of a picture and on a thumbnail of the whole.

Laurençon et al., arXiv:2408.12637, section 3.1; Marafioti et al., arXiv:2504.05299. Each block of
neighbouring patches becomes one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.batch import Image, Input
from puna.gguf.metadata import invalid, required
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import blocks, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices
from puna.vision.layers.layers import LayerNormLayer, PatchEmbedding, Table, through
from puna.vision.options import TileOptions, VisionOptions, merge_factor, with_named_layers
from puna.vision.pixels import LANCZOS, as_picture, block_order, stretched, tiles
from puna.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of, text

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

#: Upper bound of tiles along a side; published models have up to 6.
_MAX_TILES: Final = 16


@dataclass(frozen=True, kw_only=True)
class Idefics3VisionOptions(TileOptions):
    longest_edge: int  # longer side of a picture before it is cut into tiles

    @property
    def max_tiles(self) -> int:
        """Maximum tiles along a side."""
        return -(-self.longest_edge // self.image_size)


class Idefics3Vision(VisionTower):
    options: Idefics3VisionOptions
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    positions: Table = weight("v.position_embd", "patches", "hidden_size")
    layers: Sequence[LayerNormLayer] = blocks("v.blk")
    norm: LayerNorm = weight("v.post_ln", "hidden_size")
    projection: Linear = weight("mm.model.fc", "text_size", "merged_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Idefics3VisionOptions:
        options = VisionOptions.read(file, text_size, image_size=364)
        merge = merge_factor(file, options)
        key = "vision.preproc_image_size"
        edge = required(file, key, 4 * options.image_size)  # missing in older files
        if edge > _MAX_TILES * options.image_size:
            raise invalid(
                file, key, f"is {edge}, more than {_MAX_TILES} tiles of {options.image_size} pixels"
            )
        return Idefics3VisionOptions(**with_named_layers(file, options), merge=merge, longest_edge=edge)

    def loaded(self) -> None:
        super().loaded()
        o = self.options
        self._positions = self.positions.values[self.ops.array(block_order(o.side, o.side, o.merge))]

    def use(self, tokenizer: Tokenizer) -> None:
        most = self.options.max_tiles
        self._around = Input(marker(tokenizer, "<fake_token_around_image>"))
        self._whole = text(tokenizer, "<global-img>")
        self._cells = [
            [text(tokenizer, f"<row_{row}_col_{column}>") for column in range(1, most + 1)]
            for row in range(1, most + 1)
        ]
        self._line, self._paragraph = text(tokenizer, "\n"), text(tokenizer, "\n\n")

    def prepare(self, picture: Picture) -> Prepared:
        o = self.options
        picture = as_picture(stretched(picture, *longest_edge(*picture.size, o.longest_edge), LANCZOS))
        rows, columns = tile_grid(*picture.size, o.image_size)
        refined = stretched(picture, columns * o.image_size, rows * o.image_size, LANCZOS)
        if rows == columns == 1:
            return Prepared(refined[None], o.tile_rows)
        whole = stretched(as_picture(refined), o.image_size, o.image_size, LANCZOS)
        cut = np.concatenate([tiles(refined, o.image_size), whole[None]])
        return Prepared(cut, len(cut) * o.tile_rows, (rows, columns))

    @property
    def max_pixels(self) -> int:
        return (self.options.max_tiles**2 + 1) * self.options.image_size**2

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        rows = []
        for patches in self.patch_rows(prepared.pixels, o.merge):
            hidden = self.embedding(patches) + self._positions
            yield
            reading = self.reading([[o.patches]] * len(self.layers), slice_rows)
            hidden = self.norm((yield from through(self.layers, hidden, reading)))
            rows.append(self.projection(hidden.reshape(-1, o.merged_size)))
        return self.ops.concatenate(rows)

    def place(self, image: Image) -> list[Input]:
        rows, columns = image.pixels.grid
        inputs: list[Input] = []
        for tile in range(rows * columns):
            row, column = divmod(tile, columns)
            inputs += [self._around, *self._cells[row][column], *self._rows(image, tile)]
            if column == columns - 1:
                inputs += self._line if row < rows - 1 else self._paragraph
        inputs += [self._around, *self._whole, *self._rows(image, rows * columns), self._around]
        return kept_together(inputs, one_batch=False)

    def _rows(self, image: Image, tile: int) -> list[Input]:
        count = self.options.tile_rows
        return rows_of(image, begin=tile * count, end=(tile + 1) * count)


def longest_edge(width: int, height: int, edge: int) -> tuple[int, int]:
    """Return (width, height) scaled to a longer side of `edge` pixels; the other side is even."""
    if width >= height:
        height = int(edge / (width / height))
        return edge, max(height + height % 2, 1)
    width = int(edge * (width / height))
    return max(width + width % 2, 1), edge


def tile_grid(width: int, height: int, side: int) -> tuple[int, int]:
    """Return rows and columns of the tiles that a picture of this size is stretched to fill."""
    if width >= height:
        columns = -(-width // side)
        return -(-int(columns * side / (width / height)) // side), columns
    rows = -(-height // side)
    return rows, -(-int(rows * side * (width / height)) // side)
