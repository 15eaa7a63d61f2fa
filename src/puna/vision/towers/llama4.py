"""Vision tower of Llama 4: tiles of a picture and a thumbnail of the whole; rotation by column and row.

Reference: `Llama4VisionModel` in Hugging Face transformers. Four neighbouring patches become one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.batch import Image, Input
from puna.gguf.metadata import first_of, invalid, number, positive, required, table_rows
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import blocks, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices, axial_rope
from puna.vision.layers.layers import ExactLayer, FlatPatchEmbedding, Table, through
from puna.vision.options import TileOptions, VisionOptions
from puna.vision.pixels import BILINEAR, grids, on_canvas, stretched
from puna.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of
from puna.vision.towers.qwen import patch_places

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

_MAX_TILES: Final = 16


@dataclass(frozen=True, kw_only=True)
class Llama4VisionOptions(TileOptions):
    rope_base: float
    adapted_size: int  # inside and after the adapter

    @property
    def positions(self) -> int:
        """Positions of the patches and the class embedding."""
        return self.patches + 1


class Llama4Layer(ExactLayer):
    #: Newer llama.cpp converters use the name of another model's norm.
    feed_forward_norm: LayerNorm = weight("ffn_norm|ln2|attn_post_norm", "hidden_size")


class Llama4Vision(VisionTower):
    options: Llama4VisionOptions
    embedding: FlatPatchEmbedding = weight(
        "v.patch_embedding|v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size"
    )
    whole: Array = weight("v.class_embedding|v.class_embd", "hidden_size")
    positions: Table = weight("v.positional_embedding_vlm|v.position_embd", "positions", "hidden_size")
    first_norm: LayerNorm = weight("v.layernorm_pre|v.pre_ln", "hidden_size")
    layers: Sequence[Llama4Layer] = blocks("v.blk")
    norm: LayerNorm = weight("v.layernorm_post|v.post_ln", "hidden_size")
    up: Linear = weight("v.vision_adapter.mlp.fc1|mm.model.mlp.1", "adapted_size", "merged_size")
    down: Linear = weight("v.vision_adapter.mlp.fc2|mm.model.mlp.2", "adapted_size", "adapted_size")
    projection: Linear = weight("mm.linear_1|mm.model.fc", "text_size", "adapted_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Llama4VisionOptions:
        options = VisionOptions.read(file, text_size, image_size=336, norm_eps=1e-5)
        merge = _merge(file, options)
        adapted = table_rows(file, "v.vision_adapter.mlp.fc1.weight")
        return Llama4VisionOptions(
            **vars(options),
            merge=merge,
            rope_base=positive(file, "vision.rope.freq_base", 10000.0),
            adapted_size=adapted or table_rows(file, "mm.model.mlp.1.weight"),
        )

    def loaded(self) -> None:
        super().loaded()
        o, count = self.options, self.options.side // self.options.merge
        # Columns rotate the first half of the pairs; the class embedding is not rotated.
        self._rope = axial_rope(o.head_dim, o.rope_base, neox=False, axes=(1, 0))
        places = patch_places(count, count, o.merge)
        self._places = np.concatenate([places + 1, np.zeros((1, 2), np.int32)])
        order = np.append(places[:, 0] * o.side + places[:, 1], o.patches)
        self._positions = self.positions.values[self.ops.array(order)]

    def use(self, tokenizer: Tokenizer) -> None:
        spellings = "image_start", "tile_x_separator", "tile_y_separator", "image", "image_end"
        found = (Input(marker(tokenizer, f"<|{spelling}|>")) for spelling in spellings)
        self._begin, self._column_end, self._line_end, self._whole, self._end = found

    def prepare(self, picture: Picture) -> Prepared:
        o = self.options
        cut, grid = on_canvas(picture, o.image_size, grids(_MAX_TILES))
        if len(cut) > 1:
            cut = np.concatenate([cut, stretched(picture, o.image_size, o.image_size, BILINEAR)[None]])
        return Prepared(cut, len(cut) * o.tile_rows, grid)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o, rows = self.options, []
        whole = self.whole.reshape(1, o.hidden_size)
        for patches in self.patch_rows(prepared.pixels, o.merge):
            hidden = self.ops.concatenate([self.embedding(patches), whole]) + self._positions
            hidden = self.first_norm(hidden)
            yield
            reading = self.reading([[o.positions]] * len(self.layers), slice_rows, self._rope, self._places)
            hidden = self.norm((yield from through(self.layers, hidden, reading)))
            adapted = self.ops.gelu(self.up(hidden[:-1].reshape(-1, o.merged_size)))
            rows.append(self.projection(self.ops.gelu(self.down(adapted))))
        return self.ops.concatenate(rows)

    def place(self, image: Image) -> list[Input]:
        rows, columns = image.pixels.grid
        count, inputs = self.options.tile_rows, [self._begin]
        cut = rows * columns if rows * columns > 1 else 0
        for tile in range(cut):
            inputs += rows_of(image, begin=tile * count, end=(tile + 1) * count)
            inputs.append(self._column_end if (tile + 1) % columns else self._line_end)
        inputs += [self._whole, *rows_of(image, begin=cut * count), self._end]
        return kept_together(inputs, one_batch=False)

    @property
    def max_pixels(self) -> int:
        return (_MAX_TILES + 1) * self.options.image_size**2

    @property
    def max_patches(self) -> int:
        return self.options.positions


def _merge(file: GGUFFile, options: VisionOptions) -> int:
    """Read the merge factor, stored as a number or as its reciprocal."""
    key = first_of(file, "vision.projector.scale_factor", "vision.pixel_shuffle_ratio")
    if key.endswith("ratio"):
        ratio = number(file, key, 0.5)
        if not 0 < ratio <= 1 or abs(1 / ratio - round(1 / ratio)) > 1e-6:
            raise invalid(file, key, f"should be one over a number of patches, but is {ratio}")
        merge = round(1 / ratio)
    else:
        merge = required(file, key, 2)
    if options.side % merge:
        raise invalid(file, key, f"is {merge}, which does not divide the {options.side} patches of a side")
    return merge
