"""The eyes of LLaVA 1.6: those of LLaVA 1.5 on the whole picture and on tiles of it.

Liu et al., "LLaVA-NeXT: Improved reasoning, OCR, and world knowledge" (2024). The tiles are put together
again, what only pads them is left out, and each line ends with a row of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from puna.errors import UnsupportedModelError, shown
from puna.images import Picture
from puna.images.pixels import BICUBIC, padded, stretched, tile_places, tiles
from puna.model.metadata import invalid
from puna.model.vision.llava import LlavaVision, LlavaVisionOptions
from puna.model.vision.tower import Prepared
from puna.nn.module import weight
from puna.nn.vision.attention import Slices
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Columns and rows of tiles that pictures are cut into, where a file does not say it.
_GRIDS: Final = ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))
#: How tiles are chosen and put together again: other ways are not supported.
_KNOWN: Final = {"vision.mm_patch_merge_type": "spatial_unpad", "vision.image_aspect_ratio": "anyres"}
_MOST_GRIDS: Final = 256
_MOST_TILES: Final = 64


@dataclass(frozen=True, kw_only=True)
class LlavaNextVisionOptions(LlavaVisionOptions):
    grids: tuple[tuple[int, int], ...]  # columns and rows of tiles
    ends_lines: bool  # whether a row of its own follows each line of patches

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
    def most_pixels(self) -> int:
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
    """Columns and rows of tiles that show most of a picture's pixels; of such, those with least padding."""

    def worth(grid: tuple[int, int]) -> tuple[int, int]:
        wide, high = grid[0] * side, grid[1] * side
        scale = min(wide / width, high / height)
        shown = min(int(width * scale) * int(height * scale), width * height)
        return shown, shown - wide * high

    return max(grids, key=worth)


def unpadded(grid: NDArray[np.int64], width: int, height: int) -> NDArray[np.int64]:
    """The lines and columns of a grid of patches that show something of a picture, and not its padding."""
    high, wide = grid.shape
    if width / height > wide / high:
        spare = (high - int(round(height * (wide / width), 7))) // 2
        return grid[spare : high - spare]
    spare = (wide - int(round(width * (high / height), 7))) // 2
    return grid[:, spare : wide - spare]


def _grids(file: GGUFFile, side: int) -> tuple[tuple[int, int], ...]:
    """Columns and rows of tiles, of the sizes a file lists: width, height, width, height, ..."""
    key = "vision.image_grid_pinpoints"
    values: Any = file.get(key)
    if values is None:
        return _GRIDS
    if isinstance(values, str | int | float) or not 2 <= len(values) <= 2 * _MOST_GRIDS or len(values) % 2:
        raise invalid(file, key, f"should list up to {_MOST_GRIDS} widths and heights")
    sizes: Sequence[Any] = list(values)
    if not all(type(size) is int and size > 0 and size % side == 0 for size in sizes):
        raise invalid(file, key, f"should list multiples of {side} pixels")
    grids = tuple((wide // side, high // side) for wide, high in zip(sizes[::2], sizes[1::2], strict=True))
    if max(columns * rows for columns, rows in grids) > _MOST_TILES:
        raise invalid(file, key, f"lists more than {_MOST_TILES} tiles")
    return grids
