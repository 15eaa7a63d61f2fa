"""Vision tower of Step 3.7: a Perception Encoder on tiles of a picture and on the whole, then convolutions.

Reference: `Step3p7VisionModel` in Hugging Face transformers; tiles are cut as by StepFun's own code.
Positions are both learned and rotated, and two convolutions turn four patches along a side into one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.batch import Image, Input
from puna.errors import UnsupportedModelError
from puna.gguf.metadata import invalid, positive, required, table_rows
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import blocks, part, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices, axial_rope
from puna.vision.layers.convolution import Convolution, results, rimmed
from puna.vision.layers.interpolation import sampled_positions
from puna.vision.layers.layers import PatchEmbedding, QuickGeluFeedForward, ScaledLayer, Table, through
from puna.vision.options import VisionOptions
from puna.vision.pixels import (
    BILINEAR,
    CLIP_MEAN,
    CLIP_STD,
    Pixels,
    as_picture,
    normalised,
    padded,
    patches,
    stretched,
    tiles,
)
from puna.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of, square_root
from puna.vision.towers.qwen import patch_places

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

#: Pixels along a side of the whole picture, of a tile, and of the largest picture before it is cut.
_WHOLE_SIZE: Final = 728
_TILE_SIZE: Final = 504
_LONGEST_SIDE: Final = 3024
#: Pictures with a side below this number of pixels are completed to squares if they are also long.
_THIN: Final = 32
_LONG: Final = 4.0
#: Proportions beyond which a picture no larger than the whole is cut, too.
_CUT_WHOLE: Final = 1.5
#: The share of a tile for which a picture is stretched to have one more.
_LEAST_SHARE: Final = 0.2
#: Published models have up to 36, except of very long pictures, which are not cut.
_MAX_TILES: Final = 64
#: Patches of a row along a side, and the key that states them.
_ROW_PATCHES: Final = 4
_SCALE: Final = "vision.projector.scale_factor"
_ABSURD_SIZE: Final = 1 << 13


class Step3Layer(ScaledLayer):
    attention_norm: LayerNorm = weight("ln1", "hidden_size")
    feed_forward_norm: LayerNorm = weight("ln2", "hidden_size")
    feed_forward: QuickGeluFeedForward = part()


@dataclass(frozen=True, kw_only=True)
class Step3VisionOptions(VisionOptions):
    tile_size: int
    longest_side: int
    positions: int  # learned, of a square of patches
    first_size: int  # values of the first convolution's results
    second_size: int
    rope_base: float

    @property
    def tile_rows(self) -> int:
        return (self.tile_size // self.patch_size // _ROW_PATCHES) ** 2

    @property
    def whole_rows(self) -> int:
        return (self.side // _ROW_PATCHES) ** 2


class Step3Vision(VisionTower):
    options: Step3VisionOptions
    activations = ("quick gelu",)
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    positions: Table = weight("v.position_embd", "positions", "hidden_size")
    first_norm: LayerNorm = weight("v.pre_ln", "hidden_size")
    layers: Sequence[Step3Layer] = blocks("v.blk")
    first: Convolution = weight("mm.0", "first_size", "hidden_size", 3, 3)
    second: Convolution = weight("mm.1", "second_size", "first_size", 3, 3)
    projection: Linear = weight("mm.model.fc", "text_size", "second_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Step3VisionOptions:
        options = VisionOptions.read(
            file, text_size, image_size=_WHOLE_SIZE, norm_eps=1e-5, mean=CLIP_MEAN, std=CLIP_STD,
            feed_forward=("v.blk.0.ffn_up.weight",),
        )  # fmt: skip
        if options.head_dim % 4:
            key = "vision.attention.head_count"
            complaint = f"is {options.heads}: {options.head_dim} values of a head are no multiple of 4"
            raise invalid(file, key, complaint)
        if (scale := required(file, _SCALE, _ROW_PATCHES)) != _ROW_PATCHES:
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.{_SCALE}' is {scale}, and only {_ROW_PATCHES} is "
                "supported"
            )
        found = Step3VisionOptions(
            **vars(options),
            tile_size=required(file, "vision.tile_size", _TILE_SIZE),
            longest_side=required(file, "vision.preproc_image_size", _LONGEST_SIDE),
            positions=table_rows(file, "v.position_embd.weight"),
            first_size=table_rows(file, "mm.0.weight"),
            second_size=table_rows(file, "mm.1.weight"),
            rope_base=positive(file, "vision.rope.freq_base", 10000.0),
        )
        unit = options.patch_size * _ROW_PATCHES
        for key, size in (("image_size", found.image_size), ("tile_size", found.tile_size)):
            if size % unit or size > _ABSURD_SIZE:
                raise invalid(file, f"vision.{key}", f"is {size}, with rows of {unit} pixels")
        if not found.image_size <= found.longest_side <= _ABSURD_SIZE:
            complaint = f"is {found.longest_side}, with a whole picture of {found.image_size}"
            raise invalid(file, "vision.preproc_image_size", complaint)
        return found

    def loaded(self) -> None:
        super().loaded()
        # Files have rotated values side by side, those that columns rotate first.
        self._rope = axial_rope(self.options.head_dim, self.options.rope_base, neox=False, axes=(1, 0))
        side = square_root(self.options.positions)
        self._table = self.ops.numpy(self.positions.values).reshape(side, side, -1)

    def use(self, tokenizer: Tokenizer) -> None:
        self._tile = Input(marker(tokenizer, "<patch_start>")), Input(marker(tokenizer, "<patch_end>"))
        self._line_end = Input(marker(tokenizer, "<patch_newline>"))
        self._whole = Input(marker(tokenizer, "<im_start>")), Input(marker(tokenizer, "<im_end>"))

    def prepare(self, picture: Picture) -> Prepared:
        o = self.options
        picture = reduced(picture, o.longest_side)
        whole = stretched(picture, o.image_size, o.image_size, BILINEAR)
        window, (wide, high) = windows(*picture.size, o.image_size, o.tile_size)
        rows, columns = (max(size // window, 1) if window else 0 for size in (high, wide))
        if rows * columns > _MAX_TILES:
            rows = columns = 0
        cut = np.empty((0, o.tile_size, o.tile_size, 3), np.uint8)
        if rows:
            pixels = padded(stretched(picture, wide, high, BILINEAR), columns * window, rows * window)
            side = o.tile_size
            cut = np.stack(
                [stretched(as_picture(each), side, side, BILINEAR) for each in tiles(pixels, window)]
            )
        return Prepared(cut, len(cut) * o.tile_rows + o.whole_rows, (rows, columns), overview=whole)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        assert prepared.overview is not None
        rows = []
        for pixels in (*prepared.pixels, prepared.overview):
            rows += [(yield from self._read(pixels, slice_rows))]
        return self.ops.concatenate(rows)

    def _read(self, pixels: Pixels, slice_rows: int) -> Slices[Array]:
        """Return the rows of a tile or of the whole picture: [rows, text_size]."""
        o, side = self.options, len(pixels) // self.options.patch_size
        flat = self.ops.array(normalised(patches(pixels, o.patch_size), o.mean, o.std))
        learned = self.ops.array(sampled_positions(self._table, side, side, cubic=False))
        hidden = self.first_norm(self.embedding(flat) + learned)
        yield
        places = patch_places(side, side, 1)
        reading = self.reading([[len(flat)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = yield from through(self.layers, hidden, reading)
        for convolution in (self.first, self.second):
            parts = []
            for rows in convolution.parts(rimmed(self.ops, [hidden]), side, 2, slice_rows, rim=1):
                parts.append(rows)
                yield
            hidden, side = self.ops.concatenate(parts), results(side, 2)
        return self.projection(hidden)

    def place(self, image: Image) -> list[Input]:
        (rows, columns), count, inputs = image.pixels.grid, self.options.tile_rows, []
        for number in range(rows * columns):
            begin = number * count
            inputs += [self._tile[0], *rows_of(image, begin=begin, end=begin + count), self._tile[1]]
            if (number + 1) % columns == 0 and number + 1 < rows * columns:
                inputs.append(self._line_end)
        begin = rows * columns * count
        inputs += [self._whole[0], *rows_of(image, begin=begin), self._whole[1]]
        return kept_together(inputs, one_batch=False)

    @property
    def max_patches(self) -> int:
        return max(self.options.image_size, self.options.tile_size) ** 2 // self.options.patch_size**2

    @property
    def max_pixels(self) -> int:
        return _MAX_TILES * self.options.tile_size**2 + self.options.image_size**2


def reduced(picture: Picture, longest_side: int) -> Picture:
    """Return the picture with sides of at most `longest_side` pixels.

    Black completes a thin one to a square.
    """
    width, height = picture.size
    longest, shortest = max(width, height), min(width, height)
    if longest > longest_side:
        scale = longest_side / longest
        size = max(int(width * scale), 1), max(int(height * scale), 1)
        picture = as_picture(stretched(picture, *size, BILINEAR))
    if shortest < _THIN and longest / shortest > _LONG:
        side = max(picture.size)
        picture = as_picture(padded(np.asarray(picture), side, side))
    return picture


def windows(width: int, height: int, whole: int, tile: int) -> tuple[int, tuple[int, int]]:
    """Return the side of the squares to cut a picture into, and the (width, height) to resize it to before.

    The side is 0 if the picture is not cut. `whole` and `tile` are the sides at which the whole picture and
    tiles are read, all in pixels.
    """
    longest, shortest = max(width, height), min(width, height)
    if longest <= whole:
        window = shortest if longest / shortest > _CUT_WHOLE else 0
    else:
        window = min(shortest, tile) if longest / shortest > _LONG else tile
    if not window:
        return 0, (width, height)
    wide, high = (
        window * (size // window + (size % window > _LEAST_SHARE * window)) if size >= window else size
        for size in (width, height)
    )
    return window, (wide, high)
