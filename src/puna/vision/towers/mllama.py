"""Vision tower of Llama 3.2 Vision: all tiles of a picture read together, then again by global layers.

Grattafiori et al., arXiv:2407.21783, section 7.1. Reference: `MllamaVisionModel` in transformers. The result
joins the final patches with those before some of the layers. The text model cross-attends to all of it from
one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from puna.batch import Image, ImagePart, Input
from puna.gguf.metadata import block_count, invalid, required
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import blocks, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Groups, Slices
from puna.vision.layers.layers import ExactLayer, PatchEmbedding, Patches, Table, VisionLayerOptions, through
from puna.vision.options import VisionOptions
from puna.vision.pixels import CLIP_MEAN, CLIP_STD, grids, on_canvas
from puna.vision.tower import Prepared, VisionTower, marker, row_hash

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

#: The patches of a tile are padded with zeros to a multiple of this; the padding is attended to as well.
_MULTIPLE: Final = 8
#: Bound of tiles beyond which a file is damaged.
_ABSURD_TILES: Final = 64


class GlobalLayer(ExactLayer):
    """Layer that scales the output of each half by a learned number."""

    attention_gate: Array = weight("attn_gate", 1)
    feed_forward_gate: Array = weight("ffn_gate", 1)

    def _rest(self, hidden: Array, attended: Array) -> Array:
        hidden, normed = self.feed_forward_norm.after_adding(attended * self.attention_gate, hidden)
        total: Array = hidden + self.feed_forward.forward(normed) * self.feed_forward_gate
        return total


@dataclass(frozen=True, kw_only=True)
class MllamaVisionOptions(VisionOptions):
    max_tiles: int
    kept: tuple[int, ...]  # layers before which the patches are kept for the result
    global_layers: tuple[VisionLayerOptions, ...]

    @property
    def positions(self) -> int:
        """Positions of a tile's patches and the class embedding."""
        return self.patches + 1

    @property
    def padding(self) -> int:
        """Padding rows after the patches of a tile."""
        return -self.positions % _MULTIPLE

    @property
    def ranks(self) -> int:
        """Number of possible grids of tiles, plus one for no image."""
        return len(grids(self.max_tiles)) + 1

    @property
    def tiles_size(self) -> int:
        return self.max_tiles * self.hidden_size

    @property
    def places_size(self) -> int:
        return self.max_tiles * self.positions * self.hidden_size

    @property
    def seen_size(self) -> int:
        """Values of a patch that the projection reads."""
        return self.hidden_size * (1 + len(self.kept))


class MllamaVision(VisionTower):
    options: MllamaVisionOptions
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    whole: Array = weight("v.class_embd", "hidden_size")
    positions: Table = weight("v.position_embd", "positions", "hidden_size")
    positions_gate: Array = weight("v.position_embd.gate", 1)
    places: Table = weight("v.tile_position_embd", "ranks", "places_size")
    places_gate: Array = weight("v.tile_position_embd.gate", 1)
    before: Table = weight("v.pre_tile_position_embd", "ranks", "tiles_size")
    before_gate: Array = weight("v.pre_tile_position_embd.gate", 1)
    after: Table = weight("v.post_tile_position_embd", "ranks", "tiles_size")
    after_gate: Array = weight("v.post_tile_position_embd.gate", 1)
    first_norm: LayerNorm = weight("v.pre_ln", "hidden_size")
    layers: Sequence[ExactLayer] = blocks("v.blk")
    norm: LayerNorm = weight("v.post_ln", "hidden_size")
    global_layers: Sequence[GlobalLayer] = blocks("v.global.blk", options="global_layers")
    projection: Linear = weight("mm.0", "text_size", "seen_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> MllamaVisionOptions:
        options = VisionOptions.read(
            file, text_size, image_size=560, norm_eps=1e-5, mean=CLIP_MEAN, std=CLIP_STD
        )
        count = block_count(file, "v.global.blk", key="vision.global.block_count")
        tiles = required(file, "vision.max_num_tiles", 4)
        if tiles > _ABSURD_TILES:
            raise invalid(file, "vision.max_num_tiles", f"is {tiles}, which is more than any model has")
        return MllamaVisionOptions(
            **vars(options),
            max_tiles=tiles,
            kept=_kept(file, len(options.layers)),
            global_layers=options.layers[:1] * count,
        )

    def use(self, tokenizer: Tokenizer) -> None:
        self._token = marker(tokenizer, "<|image|>")

    def prepare(self, picture: Picture) -> Prepared:
        o = self.options
        cut, grid = on_canvas(picture, o.image_size, grids(o.max_tiles))
        return Prepared(cut, len(cut) * o.positions, grid)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o, ops = self.options, self.ops
        rank = grids(o.max_tiles).index(prepared.grid) + 1
        before, after, places = (
            table.values[rank].reshape(o.max_tiles, -1, o.hidden_size) * gate
            for table, gate in (
                (self.before, self.before_gate),
                (self.after, self.after_gate),
                (self.places, self.places_gate),
            )
        )
        whole, positions = self.whole.reshape(1, -1), self.positions.values * self.positions_gate
        empty = ops.array(np.zeros((o.patches, o.hidden_size), np.float32))  # a tile without pixels
        embedded = [self.embedding(patches) for patches in self.patch_rows(prepared.pixels)]
        count, tiles = len(embedded), []
        for tile in range(o.max_tiles):
            patches = embedded[tile] if tile < count else empty
            hidden = ops.concatenate([whole, patches + before[tile]]) + positions + places[tile]
            tiles.append(self.first_norm(hidden))
            yield
        # Real tiles come first: padding attends only to them.
        padding = ops.array(np.zeros((o.max_tiles * o.padding, o.hidden_size), np.float32))
        hidden = ops.concatenate([*tiles, padding])
        real, total = count * o.positions, len(hidden)
        seen = np.full(total, real, np.int32)
        seen[:real] = total
        self.keys.reserve(total)
        groups = Groups(ops.array(np.zeros(total, np.int32)), ops.array(seen))
        reading = Patches(self.keys, [groups] * max(len(self.layers), len(self.global_layers)), slice_rows)
        kept = []
        for layer in self.layers:
            if layer.index in o.kept:
                kept.append(hidden[:real])
            hidden = yield from layer.forward(hidden, reading)
        of_row = np.arange(o.max_tiles).repeat([o.positions] * o.max_tiles)
        of_padding = np.arange(o.max_tiles).repeat(o.padding)
        tile_of = ops.array(np.concatenate([of_row, of_padding]))
        hidden = self.norm(hidden) + after.reshape(o.max_tiles, -1)[tile_of]
        hidden = (yield from through(self.global_layers, hidden, reading))[:real]
        if kept:  # interleaved value by value, not layer by layer
            beside = np.stack([ops.numpy(each) for each in kept], axis=-1).reshape(real, -1)
            hidden = ops.join([hidden, ops.array(beside)])
        return self.projection(hidden)

    def place(self, image: Image) -> list[Input]:
        return [Input(self._token, row_hash(image.digest, 0), ImagePart(image, 0, image.rows))]

    @property
    def max_patches(self) -> int:
        return self.options.max_tiles * (self.options.positions + self.options.padding)


def _kept(file: GGUFFile, count: int) -> tuple[int, ...]:
    key = "vision.intermediate_layers_indices"
    listed: Any = file.get(key)
    if listed is None:
        return ()
    if isinstance(listed, str | int | float) or not all(type(index) is int for index in listed[:count]):
        raise invalid(file, key, "should list layers")
    layers = tuple(listed[:count])
    if not all(0 <= layer < count for layer in layers) or list(layers) != sorted(set(layers)):
        raise invalid(file, key, f"should list layers from 0 to {count - 1} in order, but is {list(layers)}")
    return layers
