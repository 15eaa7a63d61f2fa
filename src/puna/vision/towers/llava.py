"""Vision towers of LLaVA 1.5 and 1.6: CLIP (Radford et al., arXiv:2103.00020) up to its second-last layer.

Two linears project the patches (Liu et al., arXiv:2310.03744). LLaVA 1.5 pads a picture to a square; 1.6
reads it in tiles as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from puna.batch import Image, Input
from puna.errors import UnsupportedModelError, shown
from puna.gguf.metadata import flag, invalid, table_rows
from puna.nn.layers import LayerNorm, Linear, Unused
from puna.nn.module import blocks, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices
from puna.vision.layers.layers import LayerNormLayer, PatchEmbedding, Table, clip_layer_kind, through
from puna.vision.options import VisionOptions, with_clip_layers
from puna.vision.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, as_picture, padded, stretched, tile_places, tiles
from puna.vision.tower import Prepared, VisionTower, kept_together, rows_of

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Longer side of a picture in pixels; larger ones are scaled down before they are padded.
_LARGEST_SIDE: Final = 4096


@dataclass(frozen=True, kw_only=True)
class LlavaVisionOptions(VisionOptions):
    projected_size: int  # between the two linears
    used_layers: int  # the layers that run; the last one's patches are projected

    @property
    def positions(self) -> int:
        """Positions of the patches and the class embedding."""
        return self.patches + 1


class LlavaVision(VisionTower):
    options: LlavaVisionOptions
    activations = ("gelu", "quick gelu")
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    whole: Array = weight("v.class_embd", "hidden_size")
    positions: Table = weight("v.position_embd", "positions", "hidden_size")
    first_norm: LayerNorm = weight("v.pre_ln", "hidden_size")
    last_norm: Unused | None = weight("v.post_ln", "hidden_size", optional=True)
    last_bias: Array | None = weight("v.post_ln.bias", "hidden_size", optional=True)
    layers: Sequence[LayerNormLayer] = blocks("v.blk", choose=clip_layer_kind)
    up: Linear = weight("mm.0", "projected_size", "hidden_size")
    down: Linear = weight("mm.2", "text_size", "projected_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> LlavaVisionOptions:
        if "mm.4.weight" in file.tensors:
            raise UnsupportedModelError(
                f"{file.path}: tensor 'mm.4.weight' belongs to Yi-VL, which is not supported"
            )
        options = VisionOptions.read(
            file, text_size, image_size=336, norm_eps=1e-5, mean=CLIP_MEAN, std=CLIP_STD,
            feed_forward=("v.blk.0.ffn_up.weight",),
        )  # fmt: skip
        return LlavaVisionOptions(
            **with_clip_layers(file, options),
            projected_size=table_rows(file, "mm.0.weight"),
            used_layers=_used_layers(file, len(options.layers)),
        )

    def prepare(self, picture: Picture) -> Prepared:
        o = self.options
        if (longest := max(picture.size)) > _LARGEST_SIDE:  # a thin strip would become a huge square
            width, height = (max(size * _LARGEST_SIDE // longest, 1) for size in picture.size)
            picture = as_picture(stretched(picture, width, height, BICUBIC))
        width, height = picture.size
        side = max(width, height)
        square = padded(
            np.asarray(picture), side, side, left=(side - width) // 2, top=(side - height) // 2,
            colour=tuple(int(255 * mean) for mean in o.mean),
        )  # fmt: skip
        pixels = stretched(as_picture(square), o.image_size, o.image_size, BICUBIC)
        return Prepared(pixels[None], o.patches)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        (patches,) = self.patch_rows(prepared.pixels)
        return (yield from self.read(patches, slice_rows))

    def read(self, patches: Array, slice_rows: int) -> Slices[Array]:
        """Return the rows of one square of patches [patches, text_size], yielding between steps."""
        o = self.options
        whole = self.whole.reshape(1, o.hidden_size)
        hidden = self.ops.concatenate([whole, self.embedding(patches)]) + self.positions.values
        hidden = self.first_norm(hidden)
        yield
        reading = self.reading([[o.positions]] * len(self.layers), slice_rows)
        hidden = yield from through(self.layers[: o.used_layers], hidden, reading)
        return self.down(self.ops.gelu(self.up(hidden[1:])))

    def place(self, image: Image) -> list[Input]:
        return kept_together(rows_of(image), one_batch=False)

    @property
    def max_patches(self) -> int:
        return self.options.positions


def _used_layers(file: GGUFFile, count: int) -> int:
    """Return how many of the file's layers run: all but CLIP's last one, which most files lack.

    Newer files name the layer in `feature_layer`. Before that, llama.cpp's converter left the last layer out
    and called the result a LLaVA projector. For other files this guesses: a complete CLIP has an even number
    of layers.
    """
    key = "vision.feature_layer"
    listed: Any = file.get(key)
    if listed is not None:
        layers = [listed] if isinstance(listed, int) else listed
        if isinstance(layers, str | float) or not all(type(layer) is int for layer in layers[: count + 1]):
            raise invalid(file, key, "should name a layer")
        if len(layers) != 1:
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.{key}' names {len(layers)} layers; towers that take "
                "patches from several are not supported"
            )
        if not 0 < layers[0] <= count:
            raise invalid(file, key, f"is {layers[0]}, but there are {count} layers")
        return int(layers[0])
    if flag(file, "has_llava_projector", False):
        return count
    return count - 1 if count % 2 == 0 else count


#: Columns and rows of tiles if the file lists none.
_GRIDS: Final = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
#: The supported ways of choosing and joining tiles.
_KNOWN: Final = {"vision.mm_patch_merge_type": "spatial_unpad", "vision.image_aspect_ratio": "anyres"}
_MAX_GRIDS: Final = 256
_MAX_TILES: Final = 64


@dataclass(frozen=True, kw_only=True)
class LlavaNextVisionOptions(LlavaVisionOptions):
    grids: tuple[tuple[int, int], ...]  # columns and rows of tiles
    ends_lines: bool  # whether a newline row follows each line of patches

    @property
    def newline_size(self) -> int:
        return self.text_size


class LlavaNextVision(LlavaVision):
    options: LlavaNextVisionOptions
    newline: Array | None = weight("model.image_newline", "newline_size", optional=True)

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> LlavaNextVisionOptions:
        options = super().read_options(file, text_size)
        for key, known in _KNOWN.items():
            if (value := file.get(key)) not in (None, known):
                raise UnsupportedModelError(
                    f"{file.path}: '{file.architecture}.{key}' is {shown(value)}, and only {shown(known)} is "
                    "supported"
                )
        return LlavaNextVisionOptions(
            **vars(options),
            grids=_grids(file, options.image_size),
            ends_lines="model.image_newline" in file.tensors,
        )

    def prepare(self, picture: Picture) -> Prepared:
        o, (width, height), side = self.options, picture.size, self.options.image_size
        columns, rows = best_grid(width, height, side, o.grids)
        wide, high = columns * side / width, rows * side / height
        inner = (
            (columns * side, min(math.ceil(height * wide), rows * side))
            if wide < high
            else (min(math.ceil(width * high), columns * side), rows * side)
        )
        canvas = padded(
            stretched(picture, *inner, BICUBIC), columns * side, rows * side,
            left=(columns * side - inner[0]) // 2, top=(rows * side - inner[1]) // 2,
        )  # fmt: skip
        pixels = np.concatenate([stretched(picture, side, side, BICUBIC)[None], tiles(canvas, side)])
        lines = unpadded(tile_places(rows, columns, o.side), width, height) + o.patches
        if o.ends_lines:
            ends = np.full((len(lines), 1), len(pixels) * o.patches)
            lines = np.concatenate([lines, ends], axis=1)
        order = np.concatenate([np.arange(o.patches), lines.reshape(-1)])
        return Prepared(pixels, len(order), (rows, columns), order=order)

    @property
    def max_pixels(self) -> int:
        return (max(rows * columns for columns, rows in self.options.grids) + 1) * self.options.image_size**2

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        assert prepared.order is not None
        found = []
        for patches in self.patch_rows(prepared.pixels):
            found += [(yield from self.read(patches, slice_rows))]
        if self.newline is not None:
            found.append(self.newline.reshape(1, self.options.text_size))
        rows: Array = self.ops.concatenate(found)[self.ops.array(prepared.order)]
        return rows


def best_grid(width: int, height: int, side: int, grids: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Return the columns and rows of tiles that keep most of a picture's pixels, then waste fewest."""

    def worth(grid: tuple[int, int]) -> tuple[int, int]:
        wide, high = grid[0] * side, grid[1] * side
        scale = min(wide / width, high / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, shown - wide * high

    return max(grids, key=worth)


def unpadded(grid: NDArray[np.int64], width: int, height: int) -> NDArray[np.int64]:
    """Return the lines and columns of a grid of patches that are not padding."""
    high, wide = grid.shape
    if width / height > wide / high:
        spare = (high - int(round(height * (wide / width), 7))) // 2
        return grid[spare : high - spare]
    spare = (wide - int(round(width * (high / height), 7))) // 2
    return grid[:, spare : wide - spare]


def _grids(file: GGUFFile, side: int) -> tuple[tuple[int, int], ...]:
    """Return columns and rows of tiles for the sizes listed in the file: width, height, width, height, ..."""
    key = "vision.image_grid_pinpoints"
    values: Any = file.get(key)
    if values is None:
        return _GRIDS
    if isinstance(values, str | int | float) or not 2 <= len(values) <= 2 * _MAX_GRIDS or len(values) % 2:
        raise invalid(file, key, f"should list up to {_MAX_GRIDS} widths and heights")
    sizes: Sequence[Any] = list(values)
    if not all(type(size) is int and size > 0 and size % side == 0 for size in sizes):
        raise invalid(file, key, f"should list multiples of {side} pixels")
    grids = tuple((wide // side, high // side) for wide, high in zip(sizes[::2], sizes[1::2], strict=True))
    if max(columns * rows for columns, rows in grids) > _MAX_TILES:
        raise invalid(file, key, f"lists more than {_MAX_TILES} tiles")
    return grids
