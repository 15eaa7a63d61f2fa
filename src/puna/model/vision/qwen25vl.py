"""The eyes of Qwen2.5-VL: pictures at about their own size, most layers looking through windows.

Bai et al., arXiv:2502.13923, section 2.1. Four neighbouring patches become a row. An image takes as many
places of the text as its longer side has rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from puna.batch import Image, Input
from puna.errors import ModelError
from puna.images import Picture
from puna.images.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, smart_size, stretched
from puna.model.metadata import first_of, invalid, required
from puna.model.vision.options import VisionOptions
from puna.model.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of
from puna.nn.layers import Linear, RMSNorm
from puna.nn.module import WeightSource, blocks, weight
from puna.nn.vision.attention import Slices
from puna.nn.vision.layers import PatchEmbedding, RMSNormLayer, through
from puna.ops import Array, Rope

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.model.tokenizer import Tokenizer

_LEAST_PIXELS: Final = 4 * 28 * 28
_MOST_PIXELS: Final = 2 << 20


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
        return cls(Linear.of_values(source, name, (first + second).reshape(shape[0], -1)))


@dataclass(frozen=True, kw_only=True)
class Qwen25VisionOptions(VisionOptions):
    merge: int  # patches of the side of what becomes one row
    window: int  # rows of the side of a window
    full: frozenset[int]  # layers that look at everything
    least_pixels: int
    most_pixels: int

    @property
    def merged_size(self) -> int:
        return self.hidden_size * self.merge**2

    @property
    def unit(self) -> int:
        """Pixels of the side of what becomes one row."""
        return self.patch_size * self.merge


class Qwen25Vision(VisionTower):
    options: Qwen25VisionOptions
    embedding: FramesEmbedding = weight(
        "v.patch_embd_0|v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size"
    )
    layers: Sequence[RMSNormLayer] = blocks("v.blk")
    norm: RMSNorm = weight("v.merger.ln_q|v.post_ln", "hidden_size")
    up: Linear = weight("v.merger.mlp.0|mm.0", "merged_size", "merged_size")
    down: Linear = weight("v.merger.mlp.2|mm.2", "text_size", "merged_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Qwen25VisionOptions:
        options = VisionOptions.read(
            file, text_size, image_size=560, norm_eps=1e-6, mean=CLIP_MEAN, std=CLIP_STD,
            feed_forward=("v.blk.0.ffn_gate.weight",),
        )  # fmt: skip
        merge = required(file, "vision.spatial_merge_size", 2)
        window = required(file, "vision.window_size", 112) // (options.patch_size * merge)
        least_key = first_of(file, "vision.min_pixels", "vision.image_min_pixels")
        most_key = first_of(file, "vision.max_pixels", "vision.image_max_pixels")
        least, most = required(file, least_key, _LEAST_PIXELS), required(file, most_key, _MOST_PIXELS)
        if not 1 <= merge <= 8 or window < 1:
            raise invalid(file, "vision.window_size", f"has no room for {merge} x {merge} patches")
        if not least <= most <= 1 << 26:
            raise invalid(file, most_key, f"is {most}, with at least {least}")
        values = vars(options) | {"full": _full_layers(file, len(options.layers)), "window": window}
        return Qwen25VisionOptions(**values, merge=merge, least_pixels=least, most_pixels=most)

    def loaded(self) -> None:
        super().loaded()
        quarter = self.options.head_dim // 4
        frequencies = 10000.0 ** (-np.arange(quarter) / quarter)
        axes = np.repeat(np.arange(2, dtype=np.int32), quarter)
        self._rope = Rope(np.tile(frequencies, 2).astype(np.float32), neox=True, axes=axes)

    def use(self, tokenizer: Tokenizer) -> None:
        self._begin = Input(marker(tokenizer, "<|vision_start|>"))
        self._end = Input(marker(tokenizer, "<|vision_end|>"))

    def prepare(self, picture: Picture) -> Prepared:
        o = self.options
        width, height = smart_size(*picture.size, o.unit, o.least_pixels, o.most_pixels)
        grid = height // o.unit, width // o.unit
        return Prepared(stretched(picture, width, height, BICUBIC)[None], grid[0] * grid[1], grid)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        order, windows = self._windows(*prepared.grid)
        block = o.merge**2
        (patches,) = self.patch_rows(prepared.pixels, o.merge)
        shuffled = (order[:, None] * block + np.arange(block)).reshape(-1)
        hidden = self.embedding(patches[self.ops.array(shuffled)])
        yield
        whole, parts = [len(shuffled)], [size * block for size in windows]
        groups = [whole if index in o.full else parts for index in range(len(self.layers))]
        places = patch_places(*prepared.grid, o.merge)[shuffled]
        reading = self.reading(groups, slice_rows, self._rope, places)
        hidden = self.norm((yield from through(self.layers, hidden, reading)))
        rows = self.down(self.ops.gelu(self.up(hidden.reshape(-1, o.merged_size))))
        back: Array = rows[self.ops.array(np.argsort(order))]
        return back

    def _windows(self, height: int, width: int) -> tuple[NDArray[np.int64], list[int]]:
        """The rows of a grid window by window, and how many each window has."""
        row, column = (axis.reshape(-1) for axis in np.mgrid[:height, :width])
        across = -(-width // self.options.window)
        window = row // self.options.window * across + column // self.options.window
        return np.argsort(window, kind="stable"), np.bincount(window).tolist()

    def place(self, image: Image) -> list[Input]:
        return kept_together(
            [self._begin, *placed_rows(image, *image.pixels.grid), self._end], one_batch=False
        )

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


def _full_layers(file: GGUFFile, count: int) -> frozenset[int]:
    """The layers that look at everything: listed, or each last of a period."""
    listed = file.get("vision.fullatt_block_indexes")
    if listed is None:
        period = required(file, "vision.n_wa_pattern", 8)
        return frozenset(index for index in range(count) if (index + 1) % period == 0)
    if isinstance(listed, str | int | float) or not all(type(index) is int for index in listed[:count]):
        raise invalid(file, "vision.fullatt_block_indexes", "should list layers")
    return frozenset(listed[:count])
