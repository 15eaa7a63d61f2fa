"""Vision towers of MiniCPM-V: SigLIP on slices of a picture and on the whole.

Versions 2.5 to 4.5 (Yao et al., arXiv:2408.01800, section 3.2) turn each slice into a fixed number of rows
with a resampler; 4.6 merges patches instead. `SlicingVision` is common to both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from puna.batch import Image, Input
from puna.errors import UnsupportedModelError
from puna.gguf.metadata import invalid, required, scalar, table_rows
from puna.nn.feed_forward import gelu_tanh
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import Module, blocks, part, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices, pieces
from puna.vision.layers.layers import (
    LayerNormLayer,
    PatchEmbedding,
    Patches,
    Table,
    VisionLayer,
    VisionLayerOptions,
    pooled,
    through,
)
from puna.vision.layers.resampler import HEAD_DIM, Resampler
from puna.vision.options import VisionOptions, with_named_layers
from puna.vision.pixels import BICUBIC, Pixels, fitted_size, slice_grid, sliced_size, stretched
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

_MAX_SLICES: Final = 9
#: As numbered in files: MiniCPM-V 2.6, MiniCPM-o 2.6, MiniCPM-V 4, 4.5 and MiniCPM-o 4.5.
_VERSIONS: Final = (3, 4, 5, 6, 100045)
_VERSION_2_5: Final = 2


@dataclass(frozen=True, kw_only=True)
class SlicingOptions(VisionOptions):
    positions: int  # learned

    @property
    def unit(self) -> int:
        """Pixels of which the sides of slices are multiples."""
        return self.patch_size

    @abstractmethod
    def rows(self, height: int, width: int) -> int:
        """Return the rows of a slice of `height` x `width` pixels."""


class SlicingVision(VisionTower):
    options: SlicingOptions
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    positions: Table = weight("v.position_embd", "positions", "hidden_size")
    layers: Sequence[LayerNormLayer] = blocks("v.blk")
    norm: LayerNorm = weight("v.post_ln", "hidden_size")

    def loaded(self) -> None:
        super().loaded()
        self._side = square_root(self.options.positions)

    def use(self, tokenizer: Tokenizer) -> None:
        self._image = Input(marker(tokenizer, "<image>")), Input(marker(tokenizer, "</image>"))
        self._slice = Input(marker(tokenizer, "<slice>")), Input(marker(tokenizer, "</slice>"))
        self._slices: tuple[list[Input], list[Input]] = ([], [])
        self._line = text(tokenizer, "\n")

    def prepare(self, picture: Picture) -> Prepared:
        o, size = self.options, picture.size
        grid = slice_grid(*size, o.image_size, _MAX_SLICES)
        fitted = fitted_size(*size, o.image_size, o.unit, enlarge=grid is None)
        whole = stretched(picture, *fitted, BICUBIC)
        count = o.rows(*whole.shape[:2])
        if grid is None:
            return Prepared(whole[None], count)
        rows, columns = grid
        width, height = sliced_size(*size, grid, o.image_size, o.unit)
        cut = stretched(picture, columns * width, rows * height, BICUBIC)
        slices = cut.reshape(rows, height, columns, width, 3).swapaxes(1, 2).reshape(-1, height, width, 3)
        count += len(slices) * o.rows(height, width)
        return Prepared(np.ascontiguousarray(slices), count, grid, overview=whole)

    @property
    def max_pixels(self) -> int:
        return (_MAX_SLICES + 1) * super().max_pixels

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        whole = [] if prepared.overview is None else [prepared.overview]
        rows = []
        for pixels in (*whole, *prepared.pixels):
            rows += [(yield from self.read(pixels, slice_rows))]
        return self.ops.concatenate(rows)

    @abstractmethod
    def read(self, pixels: Pixels, slice_rows: int) -> Slices[Array]:
        """Return the rows of one slice or of the whole: [rows, text_size]."""

    def embedded(self, pixels: Pixels) -> Array:
        """Return the embedded patches of a slice with positions: [patches, hidden_size]."""
        height, width = (size // self.options.patch_size for size in pixels.shape[:2])
        (patches,) = self.patch_rows(pixels[None])
        # Nearest lower places of the grid that was learned.
        down, across = (self._side * np.arange(count) // count for count in (height, width))
        places = (down[:, None] * self._side + across).reshape(-1)
        hidden: Array = self.embedding(patches) + self.positions.values[self.ops.array(places)]
        return hidden

    def place(self, image: Image) -> list[Input]:
        (rows, columns), shown = image.pixels.grid, image.pixels
        first = shown.pixels[0] if shown.overview is None else shown.overview
        begin = self.options.rows(*first.shape[:2])
        inputs = [self._image[0], *rows_of(image, end=begin), self._image[1]]
        if rows:
            count = self.options.rows(*shown.pixels.shape[1:3])
            inputs += self._slices[0]
            for number in range(rows * columns):
                if number and number % columns == 0:
                    inputs += self._line
                inputs += [self._slice[0], *rows_of(image, begin=begin, end=begin + count), self._slice[1]]
                begin += count
            inputs += self._slices[1]
        return kept_together(inputs, one_batch=False)


@dataclass(frozen=True, kw_only=True)
class MiniCPMVisionOptions(SlicingOptions):
    queries: int  # rows per slice
    listed: int  # places of patches stored in the file
    nested: bool  # whether slices are marked like images, in one outer pair of markers

    def rows(self, height: int, width: int) -> int:
        return self.queries


class MiniCPMVision(SlicingVision):
    options: MiniCPMVisionOptions
    resampler: Resampler = part("resampler")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> MiniCPMVisionOptions:
        options = VisionOptions.read(file, text_size, image_size=448)
        version = scalar(file, "minicpmv_version", _VERSION_2_5)
        if version != _VERSION_2_5 and version not in _VERSIONS:
            raise UnsupportedModelError(f"{file.path}: version {version} of MiniCPM-V is not supported")
        if text_size % HEAD_DIM:
            raise UnsupportedModelError(
                f"{file.path}: resamplers are supported for multiples of {HEAD_DIM} numbers, not {text_size}"
            )
        queries = table_rows(file, "resampler.query")
        if (said := scalar(file, "minicpmv_query_num", queries)) != queries:
            raise invalid(file, "minicpmv_query_num", f"is {said}, but there are {queries} queries")
        return MiniCPMVisionOptions(
            **with_named_layers(file, options),
            positions=table_rows(file, "v.position_embd.weight"),
            queries=queries,
            listed=table_rows(file, "resampler.pos_embed_k"),
            nested=version == _VERSION_2_5,
        )

    def use(self, tokenizer: Tokenizer) -> None:
        super().use(tokenizer)
        if self.options.nested:
            begin, end = self._slice
            self._slice, self._slices = self._image, ([begin], [end])

    def read(self, pixels: Pixels, slice_rows: int) -> Slices[Array]:
        height, width = (size // self.options.patch_size for size in pixels.shape[:2])
        hidden = self.embedded(pixels)
        yield
        reading = self.reading([[len(hidden)]] * len(self.layers), slice_rows)
        hidden = self.norm((yield from through(self.layers, hidden, reading)))
        return (yield from self.resampler.forward(hidden, height, width, slice_rows))

    @property
    def max_patches(self) -> int:
        """Patches of a thin slice, both of whose sides are rounded up."""
        return 3 * self.options.patches // 2


#: Patches merged into one: in total, and along a side.
_MERGED, _SIDE = 4, 2


@dataclass(frozen=True, kw_only=True)
class MergerOptions:
    layer: VisionLayerOptions
    inner_size: int

    @property
    def hidden_size(self) -> int:
        return self.layer.hidden_size

    @property
    def merged_size(self) -> int:
        return self.hidden_size * _MERGED

    @property
    def norm_eps(self) -> float:
        return self.layer.norm_eps


class WindowAttention(VisionLayer):
    """Attention half of a layer, without its feed-forward network."""

    attention_norm: LayerNorm = weight("ln1", "hidden_size")

    def _rest(self, hidden: Array, attended: Array) -> Array:
        total: Array = hidden + attended
        return total


class WindowMerger(Module):
    """Merges four neighbours into one: their mean plus a network's output for all four."""

    options: MergerOptions
    window: WindowAttention = part(options="layer")
    norm: LayerNorm = weight("ds_ln", "merged_size")
    up: Linear = weight("ds_ffn_up", "inner_size", "merged_size")
    down: Linear = weight("ds_ffn_down", "hidden_size", "inner_size")

    def forward(self, hidden: Array, patches: Patches) -> Slices[Array]:
        """Map [windows * 4, hidden] to [windows, hidden]."""
        o, merged = self.options, []
        hidden = yield from self.window.forward(hidden, patches)
        windows = hidden.reshape(-1, _SIDE, _SIDE, o.hidden_size)
        for begin, end in pieces(len(windows), patches.slice_rows):
            part = windows[begin:end]
            joined = self.norm(part.reshape(-1, o.merged_size))
            said = self.down(gelu_tanh(self.ops, self.up(joined)))
            merged.append(said + pooled(part.reshape(-1, _SIDE, o.hidden_size), _SIDE))
            yield
        return self.ops.concatenate(merged)


@dataclass(frozen=True, kw_only=True)
class MiniCPM46Options(SlicingOptions):
    merges: int  # 2, or 1 if patches are merged only after the last layer
    merged_after: int  # layer after which the first merge happens
    merger: MergerOptions | None
    projected_size: int

    @property
    def unit(self) -> int:
        return self.patch_size << self.merges  # `_SIDE` is 2

    @property
    def merged_size(self) -> int:
        return self.hidden_size * _MERGED

    def rows(self, height: int, width: int) -> int:
        return height * width // self.unit**2


def merger_kind(options: MiniCPM46Options) -> type[WindowMerger] | None:
    return WindowMerger if options.merger else None


class MiniCPM46Vision(SlicingVision):
    options: MiniCPM46Options
    merger: WindowMerger | None = part("v.vit_merger", choose=merger_kind, options="merger")
    merged_norm: LayerNorm = weight("mm.input_norm", "merged_size")
    up: Linear = weight("mm.up", "projected_size", "merged_size")
    down: Linear = weight("mm.down", "text_size", "projected_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> MiniCPM46Options:
        options = VisionOptions.read(file, text_size, image_size=448)
        factor = required(file, "vision.projector.scale_factor", _SIDE**2)
        if factor not in (_SIDE, _SIDE**2):
            raise invalid(file, "vision.projector.scale_factor", f"is {factor}, which should be 2 or 4")
        inner = table_rows(file, "v.vit_merger.ds_ffn_up.weight")
        return MiniCPM46Options(
            **with_named_layers(file, options),
            positions=table_rows(file, "v.position_embd.weight"),
            merges=1 if factor == _SIDE else 2,
            merged_after=_merging_layer(file, len(options.layers)),
            merger=None if factor == _SIDE else MergerOptions(layer=options.layers[0], inner_size=inner),
            projected_size=table_rows(file, "mm.up.weight"),
        )

    def read(self, pixels: Pixels, slice_rows: int) -> Slices[Array]:
        o = self.options
        height, width = (size // o.patch_size for size in pixels.shape[:2])
        order = nested_order(height, width, o.merges)
        hidden, first = self.embedded(pixels)[self.ops.array(order)], 0
        yield
        if self.merger is not None:
            first = o.merged_after + 1
            reading = self.reading([[len(hidden)]] * len(self.layers), slice_rows)
            hidden = yield from through(self.layers[:first], hidden, reading)
            windows = self.reading([[_MERGED] * (len(hidden) // _MERGED)], slice_rows)
            hidden = yield from self.merger.forward(hidden, windows)
        reading = self.reading([[len(hidden)]] * len(self.layers), slice_rows)
        hidden = self.norm((yield from through(self.layers[first:], hidden, reading)))
        rows = self.merged_norm(hidden.reshape(-1, o.merged_size))
        return self.down(self.ops.gelu(self.up(rows)))

    @property
    def max_patches(self) -> int:
        """Patches of a slice as thin as one row."""
        return 2 * self.options.patches


def nested_order(height: int, width: int, times: int) -> NDArray[np.int64]:
    """Return a grid's indices in nested blocks of 2 x 2, `times` levels deep."""
    numbers: NDArray[np.int64] = np.arange(height * width)
    for level in range(times):
        side = _SIDE ** (level + 1)
        cut = numbers.reshape(height // side, _SIDE, width // side, _SIDE, -1)
        numbers = cut.swapaxes(1, 2).reshape(-1)
    return numbers


def _merging_layer(file: GGUFFile, layers: int) -> int:
    """Return the layer after which patches are merged. Raises `ModelError`."""
    key = "vision.wa_layer_indexes"
    listed: Any = file.get(key)
    if listed is None:
        listed = [min(6, layers - 1)]
    if isinstance(listed, str | int | float) or len(listed) != 1 or type(listed[0]) is not int:
        raise invalid(file, key, "should name one layer")
    if not 0 <= listed[0] < layers:
        raise invalid(file, key, f"names layer {listed[0]} of {layers}")
    return int(listed[0])
