"""Vision tower of Gemma 4: pictures scaled to as many patches as allowed, nine per row.

Reference: `Gemma4VisionModel` in Hugging Face transformers. The first half of each head is rotated by column,
the second by row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from puna.batch import Image, Input
from puna.errors import ImageError, ModelError
from puna.gguf.metadata import first_of, invalid, positive, required
from puna.nn.layers import RMSNorm, unit_norm
from puna.nn.module import Module, WeightSource, blocks, part, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices, axial_rope
from puna.vision.layers.clamped import ClampedLinear
from puna.vision.layers.layers import (
    PatchAttention,
    PatchEmbedding,
    Table,
    VisionLayer,
    VisionLayerOptions,
    pooled,
    through,
)
from puna.vision.options import VisionOptions
from puna.vision.pixels import BICUBIC, stretched
from puna.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

_MAX_ROWS: Final = 280
#: Bound beyond which a file is damaged.
_ABSURD_PIXELS: Final = 1 << 26


class Gemma4Linear(ClampedLinear):
    """Linear whose inputs and outputs are clamped, if the file has bounds for it.

    The bounds are scalar tensors beside the weight, or in `v.clamp_data`: four values for each linear of each
    layer and for the projection. `options.bound_count` is the size of that tensor, 0 if absent.
    """

    #: Linears of a layer, in the order of that tensor.
    in_layer: ClassVar[tuple[str, ...]] = (
        "attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"
    )  # fmt: skip

    @classmethod
    def read_bounds(cls, source: WeightSource, name: str, options: Any) -> tuple[float, ...]:
        if options.bound_count:
            return cls._packed(source, name, options.bound_count)
        return super().read_bounds(source, name, options)

    @classmethod
    def _packed(cls, source: WeightSource, name: str, count: int) -> tuple[float, ...]:
        values = source.values("v.clamp_data", (count,))
        assert values is not None
        parts = name.split(".")
        index = count // 4 - 1
        if parts[-1] in cls.in_layer:
            index = int(parts[-2]) * len(cls.in_layer) + cls.in_layer.index(parts[-1])
        return tuple(map(float, values[4 * index : 4 * index + 4]))


@dataclass(frozen=True, kw_only=True)
class Gemma4VisionLayerOptions(VisionLayerOptions):
    bound_count: int  # see `Gemma4Linear`


class Gemma4PatchAttention(PatchAttention):
    """Attention with norms of each head; the values' norm has no weights."""

    options: Gemma4VisionLayerOptions
    query: Gemma4Linear = weight("attn_q", "hidden_size", "hidden_size")
    key: Gemma4Linear = weight("attn_k", "hidden_size", "hidden_size")
    value: Gemma4Linear = weight("attn_v", "hidden_size", "hidden_size")
    output: Gemma4Linear = weight("attn_out", "hidden_size", "hidden_size")
    query_norm: RMSNorm = weight("attn_q_norm", "head_dim")
    key_norm: RMSNorm = weight("attn_k_norm", "head_dim")

    def loaded(self) -> None:
        self.value_norm = unit_norm(self.ops, self.options.head_dim, self.options.norm_eps)

    def linears(self, x: Array) -> list[Array]:
        return [self.query(x), self.key(x), self.value(x)]

    def project(self, x: Array) -> list[Array]:
        query, key, value = super().project(x)
        return [
            self._paired(self.query_norm(query)),
            self._paired(self.key_norm(key)),
            self.value_norm(value),
        ]

    def _paired(self, x: Array) -> Array:
        """Reorder heads, whose halves are rotated separately, so that pairs are half a head apart."""
        rows, heads, dim = x.shape
        order = self.ops.array(np.array([0, 2, 1, 3]))
        paired: Array = x.reshape(rows, heads, 4, dim // 4)[:, :, order].reshape(rows, heads, dim)
        return paired


class Gemma4FeedForward(Module):
    options: Gemma4VisionLayerOptions
    gate: Gemma4Linear = weight("ffn_gate", "feed_forward_size", "hidden_size")
    up: Gemma4Linear = weight("ffn_up", "feed_forward_size", "hidden_size")
    down: Gemma4Linear = weight("ffn_down", "hidden_size", "feed_forward_size")

    def forward(self, x: Array) -> Array:
        return self.down(self.ops.geglu(self.gate(x), self.up(x)))


class SandwichLayer(VisionLayer):
    """Layer with norms before and after each half."""

    options: Gemma4VisionLayerOptions
    attention_norm: RMSNorm = weight("ln1", "hidden_size")
    attention: Gemma4PatchAttention = part()
    post_attention_norm: RMSNorm = weight("attn_post_norm", "hidden_size")
    feed_forward_norm: RMSNorm = weight("ln2", "hidden_size")
    feed_forward: Gemma4FeedForward = part()
    post_feed_forward_norm: RMSNorm = weight("ffn_post_norm", "hidden_size")
    scale: Array | None = weight("out_scale", 1, optional=True)

    @property
    def score_scale(self) -> float:
        return 1.0

    def _rest(self, hidden: Array, attended: Array) -> Array:
        hidden, normed = self.feed_forward_norm.after_adding(self.post_attention_norm(attended), hidden)
        total: Array = hidden + self.post_feed_forward_norm(self.feed_forward.forward(normed))
        return total if self.scale is None else total * self.scale


@dataclass(frozen=True, kw_only=True)
class Gemma4VisionOptions(VisionOptions):
    layers: tuple[Gemma4VisionLayerOptions, ...]
    merge: int  # patches per row along a side
    max_pixels: int
    table_size: int  # columns, and rows, with learned positions
    rope_base: float

    @property
    def unit(self) -> int:
        """Pixels per row along a side."""
        return self.patch_size * self.merge

    @property
    def places(self) -> int:
        """Learned positions per row along a side."""
        return self.merge

    @property
    def max_rows(self) -> int:
        return self.max_pixels // self.unit**2

    @property
    def axes(self) -> int:
        return 2

    @property
    def bound_count(self) -> int:
        return self.layers[0].bound_count


class Gemma4Vision(VisionTower):
    options: Gemma4VisionOptions
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    positions: Table = weight("v.position_embd", "axes", "table_size", "hidden_size")
    layers: Sequence[SandwichLayer] = blocks("v.blk")
    bias: Array | None = weight("v.std_bias", "hidden_size", optional=True)
    scale: Array | None = weight("v.std_scale", "hidden_size", optional=True)
    projection: Gemma4Linear = weight("mm.input_projection", "text_size", "hidden_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Gemma4VisionOptions:
        options = VisionOptions.read(
            file, text_size, image_size=224, patch_size=16, feed_forward=("v.blk.0.ffn_gate.weight",),
            mean=(0.0,) * 3, std=(1.0,) * 3,
        )  # fmt: skip
        merge, most = read_row_size(file, options.patch_size)
        bounds = _bound_count(file, len(options.layers))
        layers = tuple(Gemma4VisionLayerOptions(**vars(each), bound_count=bounds) for each in options.layers)
        return Gemma4VisionOptions(
            **{**vars(options), "layers": layers, **_centred(options.mean, options.std)},
            merge=merge,
            max_pixels=most,
            table_size=read_table_size(file, merge),
            rope_base=positive(file, "vision.rope.freq_base", 100.0),
        )

    def loaded(self) -> None:
        super().loaded()
        o = self.options
        self._rope = axial_rope(o.head_dim, o.rope_base)
        self._row_norm = unit_norm(self.ops, o.hidden_size, o.norm_eps)

    def use(self, tokenizer: Tokenizer) -> None:
        self._begin = Input(marker(tokenizer, "<|image>"))
        self._end = Input(marker(tokenizer, "<image|>"))

    def prepare(self, picture: Picture) -> Prepared:
        unit = self.options.unit
        columns, rows = filling(*picture.size, unit, self.options.max_rows)
        wide, high = columns * self.options.places, rows * self.options.places
        if max(wide, high) > self.options.table_size:
            raise ImageError(
                f"an image of {picture.width} x {picture.height} pixels is too long and narrow: it would be "
                f"read as {wide} x {high} patches, and the model has positions for {self.options.table_size} "
                "along a side"
            )
        pixels = stretched(picture, columns * unit, rows * unit, BICUBIC)
        return Prepared(pixels[None], rows * columns, (rows, columns))

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        height, width = (size * o.merge for size in prepared.grid)
        (patches,) = self.patch_rows(prepared.pixels)
        row, column = (axis.reshape(-1).astype(np.int32) for axis in np.mgrid[:height, :width])
        by_column, by_row = self.positions.values[0], self.positions.values[1]
        hidden = self.embedding(patches) + by_column[self.ops.array(column)] + by_row[self.ops.array(row)]
        yield
        places = np.stack([column, row], axis=1)
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = yield from through(self.layers, hidden, reading)
        rows = pooled(hidden.reshape(height, width, o.hidden_size), o.merge) * math.sqrt(o.hidden_size)
        if self.bias is not None and self.scale is not None:
            rows = (rows - self.bias) * self.scale
        return self.projection(self._row_norm(rows))

    def place(self, image: Image) -> list[Input]:
        rows = rows_of(image, span=image.rows)
        return kept_together([self._begin, *rows, self._end], one_batch=True)

    @property
    def largest_group(self) -> int:
        return self.options.max_rows + 2

    @property
    def max_patches(self) -> int:
        return self.options.max_pixels // self.options.patch_size**2


def filling(width: int, height: int, unit: int, most: int) -> tuple[int, int]:
    """Return columns and rows of a picture enlarged to at most `most` rows of `unit` pixels per side."""
    factor = math.sqrt(most * unit**2 / (width * height))
    columns, rows = (math.floor(factor * side / unit) for side in (width, height))
    if columns and rows:
        return columns, rows
    # Too long and narrow for a whole unit across.
    return min(max(width // height, 1), most), min(max(height // width, 1), most)


def read_row_size(file: GGUFFile, patch_size: int) -> tuple[int, int]:
    """Return the patches per row along a side and the pixels of the largest image. Raises `ModelError`."""
    merge = required(file, "vision.projector.scale_factor", 3)
    if merge > 16:
        raise invalid(file, "vision.projector.scale_factor", f"is {merge}, which is more than any model has")
    unit, key = patch_size * merge, first_of(file, "vision.image_max_pixels", "vision.max_pixels")
    most = required(file, key, _MAX_ROWS * unit**2)
    if not unit**2 <= most <= _ABSURD_PIXELS:
        raise invalid(file, key, f"is {most}, but one row takes {unit} x {unit} pixels")
    return merge, most


def read_table_size(file: GGUFFile, least: int) -> int:
    """Return the columns with learned positions. Raises `ModelError` if they are fewer than a row takes."""
    table = file.tensors.get("v.position_embd.weight")
    size = table.shape[1] if table is not None and len(table.shape) == 3 else 0
    if size < least:
        raise ModelError(f"{file.path}: there are positions for {size} columns, but a row takes {least}")
    return size


def _centred(mean: Sequence[float], std: Sequence[float]) -> dict[str, tuple[float, ...]]:
    """Return mean and deviation that give 2 x - 1 where those given would give x.

    The network itself maps the image processor's output, which published settings leave between 0 and 1, to
    -1 to 1 (`Gemma4VisionPatchEmbedder` in transformers, the graph of `gemma4v` in llama.cpp).
    """
    halves = tuple(each / 2 for each in std)
    return {"mean": tuple(a + b for a, b in zip(mean, halves, strict=True)), "std": halves}


def _bound_count(file: GGUFFile, layers: int) -> int:
    """Return the size of the tensor with the bounds of all linears, 0 if absent. Raises `ModelError`."""
    tensor = file.tensors.get("v.clamp_data")
    if tensor is None:
        return 0
    expected = 4 * (layers * len(Gemma4Linear.in_layer) + 1)
    if tensor.shape != (expected,):
        raise ModelError(f"{file.path}: tensor 'v.clamp_data' should have {expected} values")
    return expected
