"""What the eyes of Qwen's models have in common, and those that are like them.

Wang et al., arXiv:2409.12191, section 2.1. Pictures are read at about their own size; blocks of neighbouring
patches become a row. An image takes as many places of the text as its longer side has rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from puna.batch import Image, Input
from puna.errors import ModelError
from puna.images import Picture
from puna.images.pixels import BICUBIC, smart_size, stretched
from puna.model.metadata import first_of, invalid, positive, required
from puna.model.vision.options import MergedOptions
from puna.model.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of
from puna.nn.layers import Linear
from puna.nn.module import WeightSource
from puna.nn.vision.layers import PatchEmbedding
from puna.nn.vision.rotation import axial_rope
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.model.tokenizer import Tokenizer

_LEAST_PIXELS: Final = 4 * 28 * 28
_MOST_PIXELS: Final = 2 << 20
#: Beyond which a file is damaged.
_ABSURD_PIXELS: Final = 1 << 26


class FramesEmbedding(PatchEmbedding):
    """One that was trained for two frames of a film, which a picture is both of: the sum of their weights."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        first = source.values(f"{name}.weight", shape)
        if first is None:
            return None
        other = f"{name[:-1]}1.weight" if name.endswith("_0") else f"{name}.weight.1"
        second = source.values(other, shape)
        if second is None:
            raise ModelError(f"tensor '{other}' is missing")
        bias = source.vector(f"{name.removesuffix('_0')}.bias", shape[0])
        return cls(Linear.of_values(source, name, (first + second).reshape(shape[0], -1), bias))


@dataclass(frozen=True, kw_only=True)
class QwenVisionOptions(MergedOptions):
    least_pixels: int
    most_pixels: int
    rope_base: float

    @classmethod
    def read_sizes(
        cls, file: GGUFFile, *, least_pixels: int = _LEAST_PIXELS, most_pixels: int = _MOST_PIXELS
    ) -> dict[str, Any]:
        """Return `merge`, the sizes between which pictures are read, and the rotation's base.

        The arguments stand for sizes that the file lacks.
        """
        merge = required(file, "vision.spatial_merge_size", 2)
        if merge > 8:
            raise invalid(file, "vision.spatial_merge_size", f"is {merge}, which is more than any model has")
        least_key = first_of(file, "vision.min_pixels", "vision.image_min_pixels", "vision.shortest_edge")
        most_key = first_of(file, "vision.max_pixels", "vision.image_max_pixels")
        least, most = required(file, least_key, least_pixels), required(file, most_key, most_pixels)
        if not least <= most <= _ABSURD_PIXELS:
            raise invalid(file, most_key, f"is {most}, with at least {least}")
        base = positive(file, "vision.rope.freq_base", 10000.0)
        return {"merge": merge, "least_pixels": least, "most_pixels": most, "rope_base": base}


class QwenTower(VisionTower):
    options: QwenVisionOptions
    markers: ClassVar[tuple[str, str]] = ("<|vision_start|>", "<|vision_end|>")

    def loaded(self) -> None:
        super().loaded()
        self._rope = axial_rope(self.options.head_dim, self.options.rope_base)

    def use(self, tokenizer: Tokenizer) -> None:
        self._begin, self._end = (Input(marker(tokenizer, spelling)) for spelling in self.markers)

    def prepare(self, picture: Picture) -> Prepared:
        unit, (width, height) = self.options.unit, self.sized(*picture.size)
        grid = height // unit, width // unit
        return Prepared(stretched(picture, width, height, BICUBIC)[None], grid[0] * grid[1], grid)

    def sized(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) at which a picture of that size is read."""
        o = self.options
        return smart_size(width, height, o.unit, o.least_pixels, o.most_pixels)

    def place(self, image: Image) -> list[Input]:
        return kept_together(
            [self._begin, *placed_rows(image, *image.pixels.grid), self._end], one_batch=False
        )

    def merged(self, hidden: Array) -> Array:
        """Patches [patches, hidden] side by side that become one row: [rows, merged_size]."""
        joined: Array = hidden.reshape(-1, self.options.merged_size)
        return joined

    @property
    def most_patches(self) -> int:
        return self.options.most_pixels // self.options.patch_size**2


def patch_places(height: int, width: int, merge: int) -> NDArray[np.int32]:
    """Row and column of each patch, block by block: int32 [patches, 2], of a grid of blocks."""
    grid = np.mgrid[: height * merge, : width * merge].astype(np.int32)  # [2, rows, columns]
    cut = grid.reshape(2, height, merge, width, merge).transpose(1, 3, 2, 4, 0)
    return np.ascontiguousarray(cut.reshape(-1, 2))


def placed_rows(image: Image, height: int, width: int) -> list[Input]:
    """The rows of an image that has a height and a width in the text, and takes the longer of them."""
    rows = [
        replace(item, place=(0, row // width, row % width), advance=0)
        for row, item in enumerate(rows_of(image))
    ]
    rows[-1] = replace(rows[-1], advance=max(height, width))
    return rows
