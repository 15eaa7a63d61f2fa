"""Vision tower of LFM2-VL: SigLIP 2 (Tschannen et al., arXiv:2502.14786) for any aspect ratio.

Liquid AI, "LFM2-VL" (2025). A large picture is cut into tiles, followed by a thumbnail of the whole. Each
block of four patches becomes one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from puna.batch import Image, Input
from puna.gguf.metadata import flag, invalid, positive, required, table_rows
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import blocks, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices
from puna.vision.layers.interpolation import resized_positions
from puna.vision.layers.layers import LayerNormLayer, PatchEmbedding, ProjectorNorm, Table, through
from puna.vision.options import MergedOptions, VisionOptions
from puna.vision.pixels import BILINEAR, Pixels, block_order, closest_grid, smart_size, stretched, tiles
from puna.vision.tower import (
    Prepared,
    VisionTower,
    kept_together,
    marker,
    rows_of,
    square_root,
    text,
)

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

#: More than any model has.
_MAX_TILES: Final = 64
_LARGEST_TILE: Final = 2048


@dataclass(frozen=True, kw_only=True)
class Lfm2VisionOptions(MergedOptions):
    positions: int  # learned
    projected_size: int  # between the two linears
    normed: bool  # whether a norm precedes the projection
    tile_size: int
    min_tiles: int
    max_tiles: int  # 1 if pictures are not cut
    thumbnail: bool  # whether a thumbnail follows the tiles
    min_pixels: int  # of pictures that are not cut
    max_pixels: int
    tolerance: float  # factor by which a picture may exceed max_pixels before it is cut

    @property
    def tile_rows(self) -> int:
        return (self.tile_size // self.unit) ** 2


class Lfm2Vision(VisionTower):
    options: Lfm2VisionOptions
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    positions: Table = weight("v.position_embd", "positions", "hidden_size")
    layers: Sequence[LayerNormLayer] = blocks("v.blk")
    norm: LayerNorm = weight("v.post_ln", "hidden_size")
    merged_norm: ProjectorNorm | None = weight("mm.layer_norm|mm.input_norm", "merged_size", optional=True)
    up: Linear = weight("mm.1", "projected_size", "merged_size")
    down: Linear = weight("mm.2", "text_size", "projected_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Lfm2VisionOptions:
        options = VisionOptions.read(file, text_size, image_size=256, patch_size=16)
        merge = required(file, "vision.projector.scale_factor", 2)
        tile = required(file, "vision.tile_size", 512)
        if merge > 8 or tile % (options.patch_size * merge) or tile > _LARGEST_TILE:
            raise invalid(file, "vision.tile_size", f"is {tile}, with rows of {merge} x {merge} patches")
        least = required(file, "vision.min_tiles", 2)
        most = required(file, "vision.max_tiles", 10)
        if not least <= most <= _MAX_TILES:
            raise invalid(file, "vision.max_tiles", f"is {most}, with at least {least}")
        fewest = required(file, "vision.min_image_tokens", 64)
        rows = required(file, "vision.max_image_tokens", 256)
        if not fewest <= rows <= 1 << 14:
            raise invalid(file, "vision.max_image_tokens", f"is {rows}, with at least {fewest}")
        split, pixels = flag(file, "vision.do_image_splitting", True), (options.patch_size * merge) ** 2
        return Lfm2VisionOptions(
            **vars(options),
            merge=merge,
            positions=table_rows(file, "v.position_embd.weight"),
            projected_size=table_rows(file, "mm.1.weight"),
            normed=flag(file, "vision.projector.use_layernorm", True),
            tile_size=tile,
            min_tiles=least if split else 1,
            max_tiles=most if split else 1,
            thumbnail=flag(file, "vision.use_thumbnail", True),
            min_pixels=fewest * pixels,
            max_pixels=rows * pixels,
            tolerance=positive(file, "vision.max_pixels_tolerance", 2.0),
        )

    def loaded(self) -> None:
        super().loaded()
        side = square_root(self.options.positions)
        self._table = self.ops.numpy(self.positions.values).reshape(side, side, -1)

    def use(self, tokenizer: Tokenizer) -> None:
        most = self.options.max_tiles
        self._begin = Input(marker(tokenizer, "<|image_start|>"))
        self._end = Input(marker(tokenizer, "<|image_end|>"))
        self._whole = text(tokenizer, "<|img_thumbnail|>")
        self._cells = {
            (row, column): text(tokenizer, f"<|img_row_{row + 1}_col_{column + 1}|>")
            for row in range(most)
            for column in range(most // (row + 1))
        }

    def prepare(self, picture: Picture) -> Prepared:
        o, (width, height) = self.options, picture.size
        small = smart_size(width, height, o.unit, o.min_pixels, o.max_pixels, thinnest=1)
        rows, columns = 1, 1
        if self._is_large(width, height):
            rows, columns = closest_grid(width, height, o.tile_size, o.min_tiles, o.max_tiles)
        whole = stretched(picture, *small, BILINEAR)
        whole_rows = small[0] * small[1] // o.unit**2
        if rows == columns == 1:
            return Prepared(whole[None], whole_rows, (1, 1))
        cut = stretched(picture, columns * o.tile_size, rows * o.tile_size, BILINEAR)
        return Prepared(
            tiles(cut, o.tile_size),
            rows * columns * o.tile_rows + (whole_rows if o.thumbnail else 0),
            (rows, columns),
            overview=whole if o.thumbnail else None,
        )

    def _is_large(self, width: int, height: int) -> bool:
        """Whether a picture is cut into tiles."""
        o = self.options
        wide, high = (max(o.patch_size, round(size / o.unit) * o.unit) for size in (width, height))
        return wide * high > o.max_pixels * o.tolerance

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        shown = [*prepared.pixels, *([] if prepared.overview is None else [prepared.overview])]
        rows = []
        for pixels in shown:
            rows += [(yield from self._rows(pixels, slice_rows))]
        return self.ops.concatenate(rows)

    def _rows(self, pixels: Pixels, slice_rows: int) -> Slices[Array]:
        """Return the rows of one tile or of the whole: [rows, text_size]."""
        o = self.options
        (patches,) = self.patch_rows(pixels[None], o.merge)
        height, width = (size // o.patch_size for size in pixels.shape[:2])
        positions = resized_positions(self._table, height, width)[block_order(height, width, o.merge)]
        hidden = self.embedding(patches) + self.ops.array(positions)
        yield
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows)
        hidden = self.norm((yield from through(self.layers, hidden, reading)))
        merged = hidden.reshape(-1, o.merged_size)
        if self.merged_norm is not None and o.normed:
            merged = self.merged_norm(merged)
        return self.down(self.ops.gelu(self.up(merged)))

    def place(self, image: Image) -> list[Input]:
        o, (rows, columns) = self.options, image.pixels.grid
        inputs = [self._begin]
        if (count := rows * columns) > 1:
            for tile in range(count):
                inputs += self._cells[divmod(tile, columns)]
                inputs += rows_of(image, begin=tile * o.tile_rows, end=(tile + 1) * o.tile_rows)
            if image.pixels.overview is not None:
                inputs += [*self._whole, *rows_of(image, begin=count * o.tile_rows)]
        else:
            inputs += rows_of(image)
        return kept_together([*inputs, self._end], one_batch=False)

    @property
    def max_pixels(self) -> int:
        return self.options.max_tiles * self.options.tile_size**2 + self.options.max_pixels

    @property
    def max_patches(self) -> int:
        o = self.options
        return max(o.max_pixels, o.tile_size**2 if o.max_tiles > 1 else 0) // o.patch_size**2
