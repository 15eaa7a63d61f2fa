"""Vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL, of Omni models, and the base of similar ones.

Wang et al., arXiv:2409.12191, section 2.1. Pictures are read at about their own size; each block of
neighbouring patches becomes one row. An image advances text positions by the rows along its longer side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from puna.batch import Image, Input
from puna.errors import ModelError
from puna.gguf.metadata import first_of, flags, invalid, positive, required, table_rows
from puna.nn.layers import LayerNorm, Linear, RMSNorm
from puna.nn.module import Module, WeightSource, blocks, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices, axial_rope
from puna.vision.layers.interpolation import resized_positions
from puna.vision.layers.layers import (
    LayerNormLayer,
    PatchEmbedding,
    RMSNormLayer,
    Table,
    clip_layer_kind,
    through,
)
from puna.vision.options import MergedOptions, VisionOptions, with_clip_layers
from puna.vision.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, smart_size, stretched
from puna.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

_MIN_PIXELS: Final = 4 * 28 * 28
_MAX_PIXELS: Final = 2 << 20
#: Bound beyond which a file is damaged.
_ABSURD_PIXELS: Final = 1 << 26


class FramesEmbedding(PatchEmbedding):
    """Patch embedding trained on two video frames; a picture is both, so the weights are summed."""

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
    min_pixels: int
    max_pixels: int
    rope_base: float

    @classmethod
    def read_sizes(
        cls,
        file: GGUFFile,
        *,
        min_pixels: int = _MIN_PIXELS,
        max_pixels: int = _MAX_PIXELS,
        merge_key: str = "vision.spatial_merge_size",
    ) -> dict[str, Any]:
        """Return the fields `merge`, `min_pixels`, `max_pixels` and `rope_base`.

        `min_pixels` and `max_pixels` replace sizes that the file lacks.
        """
        merge = required(file, merge_key, 2)
        if merge > 8:
            raise invalid(file, merge_key, f"is {merge}, which is more than any model has")
        min_key = first_of(file, "vision.min_pixels", "vision.image_min_pixels", "vision.shortest_edge")
        max_key = first_of(file, "vision.max_pixels", "vision.image_max_pixels")
        least, most = required(file, min_key, min_pixels), required(file, max_key, max_pixels)
        if not least <= most <= _ABSURD_PIXELS:
            raise invalid(file, max_key, f"is {most}, with at least {least}")
        base = positive(file, "vision.rope.freq_base", 10000.0)
        return {"merge": merge, "min_pixels": least, "max_pixels": most, "rope_base": base}


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
        """Return (width, height) at which a picture of this size is read."""
        o = self.options
        return smart_size(width, height, o.unit, o.min_pixels, o.max_pixels)

    def place(self, image: Image) -> list[Input]:
        return kept_together(
            [self._begin, *placed_rows(image, *image.pixels.grid), self._end], one_batch=False
        )

    def merged(self, hidden: Array) -> Array:
        """Join the neighbouring patches [patches, hidden] of each row: [rows, merged_size]."""
        joined: Array = hidden.reshape(-1, self.options.merged_size)
        return joined

    @property
    def max_patches(self) -> int:
        return self.options.max_pixels // self.options.patch_size**2


def patch_places(height: int, width: int, merge: int) -> NDArray[np.int32]:
    """Return row and column of each patch in a grid of blocks, block by block: int32 [patches, 2]."""
    grid = np.mgrid[: height * merge, : width * merge].astype(np.int32)  # [2, rows, columns]
    cut = grid.reshape(2, height, merge, width, merge).transpose(1, 3, 2, 4, 0)
    return np.ascontiguousarray(cut.reshape(-1, 2))


def placed_rows(image: Image, height: int, width: int) -> list[Input]:
    """Return the rows of an image with 2-D positions, advancing the text by the longer side."""
    rows = [
        replace(item, place=(0, row // width, row % width), advance=0)
        for row, item in enumerate(rows_of(image))
    ]
    rows[-1] = replace(rows[-1], advance=max(height, width))
    return rows


class Qwen2Vision(QwenTower):
    activations = ("gelu", "quick gelu")
    embedding: FramesEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    layers: Sequence[LayerNormLayer] = blocks("v.blk", choose=clip_layer_kind)
    norm: LayerNorm = weight("v.post_ln", "hidden_size")
    up: Linear = weight("mm.0", "merged_size", "merged_size")
    down: Linear = weight("mm.2", "text_size", "merged_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> QwenVisionOptions:
        options = VisionOptions.read(
            file, text_size, image_size=560, norm_eps=1e-6, mean=CLIP_MEAN, std=CLIP_STD,
            feed_forward=("v.blk.0.ffn_up.weight",),
        )  # fmt: skip
        return QwenVisionOptions(**with_clip_layers(file, options), **QwenVisionOptions.read_sizes(file))

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        (patches,) = self.patch_rows(prepared.pixels, o.merge)
        hidden = self.embedding(patches)
        yield
        places = patch_places(*prepared.grid, o.merge)
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = self.norm((yield from through(self.layers, hidden, reading)))
        return self.down(self.ops.gelu(self.up(self.merged(hidden))))


@dataclass(frozen=True, kw_only=True)
class Qwen25VisionOptions(QwenVisionOptions):
    window: int  # rows along a window's side
    full: frozenset[int]  # layers that attend to the whole image


class Qwen25Vision(QwenTower):
    options: Qwen25VisionOptions
    activations = ("silu",)
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
        sizes = Qwen25VisionOptions.read_sizes(file)
        window = required(file, "vision.window_size", 112) // (options.patch_size * sizes["merge"])
        if window < 1:
            raise invalid(file, "vision.window_size", "has no room for a row")
        full = _full_layers(file, len(options.layers))
        return Qwen25VisionOptions(**vars(options), **sizes, window=window, full=full)

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
        rows = self.down(self.ops.gelu(self.up(self.merged(hidden))))
        back: Array = rows[self.ops.array(np.argsort(order))]
        return back

    def _windows(self, height: int, width: int) -> tuple[NDArray[np.int64], list[int]]:
        """Return the rows of a grid window by window, and the size of each window."""
        row, column = (axis.reshape(-1) for axis in np.mgrid[:height, :width])
        across = -(-width // self.options.window)
        window = row // self.options.window * across + column // self.options.window
        return np.argsort(window, kind="stable"), np.bincount(window).tolist()


class Qwen25OmniVision(Qwen25Vision):
    """Vision tower of Qwen2.5-Omni, whose vocabulary spells the tokens around images differently."""

    markers: ClassVar[tuple[str, str]] = ("<|vision_bos|>", "<|vision_eos|>")


def _full_layers(file: GGUFFile, count: int) -> frozenset[int]:
    """Return the layers that attend to the whole image: listed, or the last of each period."""
    listed = file.get("vision.fullatt_block_indexes")
    if listed is None:
        period = required(file, "vision.n_wa_pattern", 8)
        return frozenset(index for index in range(count) if (index + 1) % period == 0)
    if isinstance(listed, str | int | float) or not all(type(index) is int for index in listed[:count]):
        raise invalid(file, "vision.fullatt_block_indexes", "should list layers")
    return frozenset(listed[:count])


class JoinedFramesEmbedding(FramesEmbedding):
    """Frames embedding with both frames in one tensor [out, channels, 2, size, size] (Ollama's files)."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        if not name.endswith("patch_embed"):
            return super().from_source(source, name, shape, options)
        out, channels, *size = shape
        frames = source.values(f"{name}.weight", (out * channels, 2, *size))
        if frames is None:
            return None
        bias = source.vector(f"{name}.bias", out)
        return cls(Linear.of_values(source, name, frames.sum(axis=1).reshape(out, -1), bias))


class DeepStackMerger(Module):
    """Projection of an intermediate layer's patches for an early layer of the text model."""

    norm: LayerNorm = weight("norm", "merged_size")
    up: Linear = weight("linear_fc1|fc1", "merged_size", "merged_size")
    down: Linear = weight("linear_fc2|fc2", "text_size", "merged_size")

    def __call__(self, merged: Array) -> Array:
        """Map [rows, merged_size] to [rows, text_size]."""
        return self.down(self.ops.gelu(self.up(self.norm(merged))))


class DeepStackMergers:
    """DeepStack mergers of all layers that have one, by layer number."""

    def __init__(self, mergers: dict[int, DeepStackMerger]) -> None:
        self.of_layer = mergers

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Qwen3VisionOptions
    ) -> Self:
        return cls(
            {
                layer: DeepStackMerger.load(source, options, prefix)
                for layer, prefix in zip(options.merged_layers, options.mergers, strict=True)
            }
        )


@dataclass(frozen=True, kw_only=True)
class Qwen3VisionOptions(QwenVisionOptions):
    table_side: int  # side of the square of positions that is interpolated
    merged_layers: tuple[int, ...]  # layers with a DeepStack merger
    mergers: tuple[str, ...]  # prefixes of the mergers' tensors

    @property
    def table_size(self) -> int:
        return self.table_side**2


class Qwen3Vision(QwenTower):
    options: Qwen3VisionOptions
    embedding: JoinedFramesEmbedding = weight(
        "v.patch_embed|v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size"
    )
    positions: Table = weight("v.pos_embed|v.position_embd", "table_size", "hidden_size")
    layers: Sequence[LayerNormLayer] = blocks("v.blk")
    mergers: DeepStackMergers = weight("v")
    norm: LayerNorm = weight("v.merger.norm|v.post_ln", "hidden_size")
    up: Linear = weight("v.merger.linear_fc1|mm.0", "merged_size", "merged_size")
    down: Linear = weight("v.merger.linear_fc2|mm.2", "text_size", "merged_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Qwen3VisionOptions:
        positions = table_rows(file, "v.pos_embed.weight") or table_rows(file, "v.position_embd.weight")
        options = VisionOptions.read(
            file, text_size, image_size=768, patch_size=16,
            feed_forward=("v.blk.0.mlp.linear_fc1.weight", "v.blk.0.ffn_up.weight"),
        )  # fmt: skip
        if (side := math.isqrt(positions)) ** 2 != positions:
            raise ModelError(f"{file.path}: a table of {positions} positions is not a square")
        merged_layers, mergers = _merged_layers(file, len(options.layers))
        return Qwen3VisionOptions(
            **vars(options),
            **QwenVisionOptions.read_sizes(file, min_pixels=1 << 16),
            table_side=side,
            merged_layers=merged_layers,
            mergers=mergers,
        )

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        (patches,) = self.patch_rows(prepared.pixels, o.merge)
        places = patch_places(*prepared.grid, o.merge)
        height, width = (size * o.merge for size in prepared.grid)
        table = self.ops.numpy(self.positions.values).reshape(o.table_side, o.table_side, -1)
        positions = resized_positions(table, height, width, corners=True)
        positions = positions[places[:, 0] * width + places[:, 1]]
        hidden = self.embedding(patches) + self.ops.array(positions)
        yield
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        features = []
        for layer in self.layers:
            hidden = yield from layer.forward(hidden, reading)
            if (merger := self.mergers.of_layer.get(layer.index)) is not None:
                features.append(merger(self.merged(hidden)))
                yield
        rows = self.down(self.ops.gelu(self.up(self.merged(self.norm(hidden)))))
        return self.ops.join([rows, *features])


def _merged_layers(file: GGUFFile, count: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Return the layers with a DeepStack merger, and the prefixes of the mergers' tensors."""
    if file.get("vision.is_deepstack_layers") is not None:
        said = flags(file, "vision.is_deepstack_layers", count)
        layers = tuple(index for index, speaks in enumerate(said) if speaks)
        return layers, tuple(f"v.deepstack.{layer}" for layer in layers)
    key = "vision.deepstack_visual_indexes"
    listed: Any = file.get(key)
    if listed is None:
        return (), ()
    if isinstance(listed, str | int | float) or not all(type(index) is int for index in listed[:count]):
        raise invalid(file, key, "should list layers")
    layers = tuple(listed[:count])
    if list(layers) != sorted(set(layers)) or not all(0 <= layer < count for layer in layers):
        raise invalid(file, key, f"should list layers from 0 to {count - 1} in order, but is {list(layers)}")
    return layers, tuple(f"v.deepstack_merger.{number}" for number in range(len(layers)))
