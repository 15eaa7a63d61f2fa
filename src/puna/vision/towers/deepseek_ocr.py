"""Vision tower of DeepSeek-OCR: SAM on the picture and on its tiles, then CLIP on SAM's output.

Wei et al., arXiv:2510.18234, section 3.2. A separator row follows each line of rows, and another one the
whole picture. `SamTower` is what DeepSeek-OCR 2 shares with it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from puna.batch import Image, Input
from puna.errors import ModelError
from puna.gguf.metadata import block_count, invalid, positive, required, table_rows
from puna.nn.layers import LayerNorm, Linear, StackedLinear
from puna.nn.module import blocks, part, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices
from puna.vision.layers.interpolation import resized_positions
from puna.vision.layers.layers import (
    JoinedPatchAttention,
    LayerNormLayer,
    PatchEmbedding,
    QuickGeluFeedForward,
    Table,
    through,
)
from puna.vision.layers.sam import Sam, SamLayerOptions, SamOptions
from puna.vision.options import VisionOptions
from puna.vision.pixels import (
    BICUBIC,
    closest_grid,
    normalised,
    padded,
    patches,
    stretched,
    tile_places,
    tiles,
)
from puna.vision.registry import PROJECTOR_ARCHITECTURE
from puna.vision.tower import Prepared, VisionTower, kept_together, rows_of, square_root

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_MIN_TILES: Final = 2
_MAX_TILES: Final = 9
_TILE_SHARE: Final = Fraction(5, 8)  # tiles of 640 pixels for a whole of 1024
_ABSURD_TILES: Final = 256
#: The value in the model's code; llama.cpp's converter writes SAM's, which readers do not use for CLIP.
_CLIP_EPS: Final = 1e-5
_GREY: Final = 127
#: Patches per row along a side.
_STRIDES: Final = 4
_LARGEST_SIDE: Final = 256  # patches of a picture's side; published models have 64


class OcrAttention(JoinedPatchAttention):
    inputs: StackedLinear = weight(
        "self_attn.qkv_proj|attn_qkv", "hidden_size", "hidden_size", "hidden_size", "hidden_size"
    )
    output: Linear = weight("self_attn.out_proj|attn_out", "hidden_size", "hidden_size")


class OcrLayer(LayerNormLayer):
    attention: OcrAttention = part()
    feed_forward: QuickGeluFeedForward = part()


@dataclass(frozen=True, kw_only=True)
class SamTowerOptions(VisionOptions):
    sam: SamOptions
    tile_size: int  # pixels along a side of a tile
    min_tiles: int
    max_tiles: int

    @property
    def whole_size(self) -> int:
        """Pixels along a side of the whole picture."""
        return self.sam.side * self.sam.patch_size

    @property
    def tile_side(self) -> int:
        """Rows along a side of a tile."""
        return _rows(self.tile_size // self.sam.patch_size)

    @property
    def whole_side(self) -> int:
        """Rows along a side of the whole picture."""
        return _rows(self.sam.side)

    @classmethod
    def read_sizes(cls, file: GGUFFile, out_size: int, *, share: Fraction, max_tiles: int) -> dict[str, Any]:
        """Return the fields `sam`, `tile_size`, `min_tiles` and `max_tiles`.

        SAM's output has `out_size` values; `share` is a tile's side relative to the whole picture's, and
        `max_tiles` the default. Raises `ModelError` for sizes that no model has.
        """
        sam = _read_sam(file, out_size, share)
        least = required(file, "vision.preproc_min_tiles", _MIN_TILES)
        most = required(file, "vision.preproc_max_tiles", max_tiles)
        if not least <= most <= _ABSURD_TILES:
            raise invalid(file, "vision.preproc_max_tiles", f"is {most}, with at least {least}")
        tile = int(sam.side * share) * sam.patch_size
        return {"sam": sam, "tile_size": tile, "min_tiles": least, "max_tiles": most}


class SamTower(VisionTower):
    """Tower that reads a whole picture, and the tiles of a large one, by SAM and then by layers."""

    options: SamTowerOptions
    #: Window sizes follow from SAM's tables, and the number of rows from its strides.
    without_effect = ("vision.window_size", "vision.projector.scale_factor")
    sam: Sam

    @abstractmethod
    def rows(self, seen: Array, slice_rows: int) -> Slices[Array]:
        """Return the rows of a tile or of the whole picture [rows, text_size], given SAM's output."""

    @property
    @abstractmethod
    def separators(self) -> Sequence[Array]:
        """The rows [text_size] that follow those of the tiles and of the whole picture."""

    @abstractmethod
    def order(self, rows: int, columns: int) -> NDArray[np.int64]:
        """Return the order of all rows and separators for a grid of tiles, which may be 0 x 0."""

    def prepare(self, picture: Picture) -> Prepared:
        o, (width, height) = self.options, picture.size
        scale, side = o.whole_size / max(width, height), o.whole_size
        size = max(round(width * scale), 1), max(round(height * scale), 1)
        whole = padded(
            stretched(picture, *size, BICUBIC), side, side, left=(side - size[0]) // 2,
            top=(side - size[1]) // 2, colour=_GREY,
        )  # fmt: skip
        rows, columns, cut = 0, 0, whole[:0, :0].reshape(0, 0, 0, 3)
        if max(width, height) > o.tile_size:
            rows, columns = closest_grid(width, height, o.tile_size, o.min_tiles, o.max_tiles)
            cut = tiles(stretched(picture, columns * o.tile_size, rows * o.tile_size, BICUBIC), o.tile_size)
        order = self.order(rows, columns)
        return Prepared(cut, len(order), (rows, columns), overview=whole, order=order)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        assert prepared.overview is not None
        assert prepared.order is not None
        found, o = [], self.options
        for pixels in (*prepared.pixels, prepared.overview):
            shown = self.ops.array(normalised(patches(pixels, o.sam.patch_size), o.mean, o.std))
            seen = yield from self.sam.forward(shown, slice_rows)
            found += [(yield from self.rows(seen, slice_rows))]
        ends = [each.reshape(1, o.text_size) for each in self.separators]
        rows: Array = self.ops.concatenate([*found, *ends])[self.ops.array(prepared.order)]
        return rows

    def place(self, image: Image) -> list[Input]:
        return kept_together(rows_of(image), one_batch=False)

    @property
    def max_pixels(self) -> int:
        return self.options.max_tiles * self.options.tile_size**2 + self.options.whole_size**2

    @property
    def max_patches(self) -> int:
        return self.options.sam.side**2

    def memory_bytes(self, slice_rows: int) -> int:
        """Add SAM's memory, whose queries and keys also encode places in windows and in the whole."""
        sam, layer = self.options.sam, self.options.sam.layers[0]
        numbers = sam.side**2 * (layer.head_dim + 2 * sam.side)  # of the queries of a head
        for window in {each.window or sam.side for each in sam.layers}:
            numbers += (-(-sam.side // window) * window) ** 2 * 2 * (layer.head_dim + window)
        return super().memory_bytes(slice_rows) + 4 * layer.heads * numbers


@dataclass(frozen=True, kw_only=True)
class DeepSeekOcrVisionOptions(SamTowerOptions):
    @property
    def positions(self) -> int:
        """Positions of the patches and the class embedding."""
        return self.patches + 1

    @property
    def joined_size(self) -> int:
        """Values of a patch from CLIP and SAM together."""
        return 2 * self.hidden_size


class DeepSeekOcrVision(SamTower):
    options: DeepSeekOcrVisionOptions
    activations = ("gelu",)  # quick GELU, which these files call so
    sam: Sam = part("s", options="sam")
    unused: PatchEmbedding | None = weight(
        "v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size", optional=True
    )
    whole: Array = weight("v.class_embd", "hidden_size")
    positions: Table = weight("v.position_embd", "positions", "hidden_size")
    first_norm: LayerNorm = weight("v.pre_layrnorm|v.pre_ln", "hidden_size")
    layers: Sequence[OcrLayer] = blocks("v.blk")
    projection: Linear = weight("mm.layers|mm.model.fc", "text_size", "joined_size")
    line_end: Array = weight("mm.image_newline|v.image_newline", "text_size")
    #: With this spelling in the published models.
    picture_end: Array = weight("mm.view_seperator|v.view_seperator", "text_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> DeepSeekOcrVisionOptions:
        options = VisionOptions.read(file, text_size, image_size=224)
        layers = tuple(replace(layer, norm_eps=_CLIP_EPS) for layer in options.layers)
        return DeepSeekOcrVisionOptions(
            **{**vars(options), "norm_eps": _CLIP_EPS, "layers": layers},
            **SamTowerOptions.read_sizes(file, options.hidden_size, share=_TILE_SHARE, max_tiles=_MAX_TILES),
        )

    def loaded(self) -> None:
        super().loaded()
        o = self.options
        table = self.ops.numpy(self.positions.values)
        self._first = self.ops.array(table[:1]) + self.whole.reshape(1, o.hidden_size)
        self._table = table[1:].reshape(o.side, o.side, -1)

    def rows(self, seen: Array, slice_rows: int) -> Slices[Array]:
        side = square_root(len(seen))
        positions = self.ops.array(resized_positions(self._table, side, side, cubic=True))
        hidden = self.first_norm(self.ops.concatenate([self._first, seen + positions]))
        yield
        reading = self.reading([[len(hidden)]] * len(self.layers), slice_rows)
        hidden = yield from through(self.layers, hidden, reading)
        return self.projection(self.ops.join([hidden[1:], seen]))

    @property
    def separators(self) -> Sequence[Array]:
        return self.line_end, self.picture_end

    def order(self, rows: int, columns: int) -> NDArray[np.int64]:
        """Return the tiles' rows line by line, then the whole picture's, with separators."""
        tile, whole = self.options.tile_side, self.options.whole_side
        count = rows * columns * tile**2
        line_end = count + whole**2
        grids = [count + np.arange(whole**2).reshape(whole, whole)]
        if count:
            grids.insert(0, tile_places(rows, columns, tile))
        lines = [np.pad(grid, ((0, 0), (0, 1)), constant_values=line_end).reshape(-1) for grid in grids]
        return np.concatenate([*lines, [line_end + 1]])


class DeepSeekOcrVisionBeside(DeepSeekOcrVision):
    """DeepSeek-OCR's tower in a file of its own."""

    sam: Sam = part("v.sam", options="sam")


def _rows(side: int) -> int:
    """Return the rows per side for a square of `side` patches per side."""
    return -(-side // _STRIDES)


def _read_sam(file: GGUFFile, out_size: int, share: Fraction) -> SamOptions:
    """Read SAM's options, whose sizes come mostly from its tensors.

    `share` of a side must be a whole number of patches.
    """
    prefix = "v.sam" if file.architecture == PROJECTOR_ARCHITECTURE else "s"
    inner = "sam" if prefix == "s" else "vision.sam"
    hidden, heads = (required(file, f"{inner}.{key}") for key in ("embedding_length", "head_count"))
    count = block_count(file, f"{prefix}.blk", key=f"{inner}.block_count")
    if hidden % heads:
        raise invalid(file, f"{inner}.head_count", f"is {heads}, which does not divide {hidden}")
    patch = _shape(file, f"{prefix}.patch_embd.weight")[-1]
    table = f"{prefix}.position_embd.weight" if prefix == "s" else f"{prefix}.pos_embd.weight"
    side = _shape(file, table if table in file.tensors else table.removesuffix(".weight"))[-2]
    if not 0 < side <= _LARGEST_SIDE or (side * share).denominator > 1 or not 0 < patch <= _LARGEST_SIDE:
        raise ModelError(f"{file.path}: tensor '{table}' is for {side} x {side} patches, which no model has")
    eps = positive(file, f"{inner}.attention.layer_norm_epsilon", 1e-6)
    layers = []
    for index in range(count):
        block = f"{prefix}.blk.{index}"
        names = (f"{block}.attn.{name}" for name in ("rel_pos_h", "rel_pos_h.weight", "pos_h.weight"))
        name = next((name for name in names if name in file.tensors), f"{block}.attn.rel_pos_h")
        places = _shape(file, name)[0]
        window = 0 if places == 2 * side - 1 else (places + 1) // 2
        size = table_rows(file, f"{block}.mlp.lin1.weight")
        layers.append(
            SamLayerOptions(
                hidden_size=hidden, feed_forward_size=size, heads=heads, norm_eps=eps, window=window,
                places=places,
            )
        )  # fmt: skip
    return SamOptions(
        patch_size=patch,
        side=side,
        channels=3,
        hidden_size=hidden,
        neck_size=table_rows(file, f"{prefix}.neck.0.weight"),
        middle_size=table_rows(file, f"{prefix}.net_2.weight"),
        out_size=out_size,
        norm_eps=eps,
        layers=tuple(layers),
    )


def _shape(file: GGUFFile, tensor: str) -> tuple[int, ...]:
    """Return the shape of a tensor. Raises `ModelError` if it is missing."""
    found = file.tensors.get(tensor)
    if found is None or len(found.shape) < 2:
        raise ModelError(f"{file.path}: tensor '{tensor}' is missing")
    return found.shape
