"""Vision tower of InternVL: InternViT on each tile of a picture and on a thumbnail of the whole.

Chen et al., arXiv:2404.16821 and 2412.05271. Each block of four patches becomes one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.batch import Image, Input
from puna.gguf.metadata import invalid, required, table_rows
from puna.nn.layers import LayerNorm, Linear, RMSNorm
from puna.nn.module import blocks, part, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices
from puna.vision.layers.layers import (
    PatchAttention,
    PatchEmbedding,
    ProjectorNorm,
    ScaledLayer,
    Table,
    VisionExactGeluFeedForward,
    VisionLayerOptions,
    through,
)
from puna.vision.options import TileOptions, VisionOptions, merge_factor
from puna.vision.pixels import (
    BICUBIC,
    IMAGENET_MEAN,
    IMAGENET_STD,
    block_order,
    closest_grid,
    stretched,
    tiles,
)
from puna.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

#: More than any model has.
_MAX_TILES: Final = 256


class NormedAttention(PatchAttention):
    """Attention with norms across the queries and keys of all heads, which InternViT 6B has."""

    query_norm: RMSNorm | None = weight("attn_q_norm", "hidden_size", optional=True)
    key_norm: RMSNorm | None = weight("attn_k_norm", "hidden_size", optional=True)

    def project(self, x: Array) -> list[Array]:
        query, key, value = super().project(x)
        if self.query_norm is not None:
            query = self.query_norm(query.reshape(x.shape)).reshape(query.shape)
        if self.key_norm is not None:
            key = self.key_norm(key.reshape(x.shape)).reshape(key.shape)
        return [query, key, value]


class InternBaseLayer(ScaledLayer):
    """Layer of InternViT; the norms depend on its size."""

    attention: NormedAttention = part()
    feed_forward: VisionExactGeluFeedForward = part()


class InternLayer(InternBaseLayer):
    """Layer of InternViT 300M."""

    attention_norm: LayerNorm = weight("ln1", "hidden_size")
    feed_forward_norm: LayerNorm = weight("ln2", "hidden_size")


class RMSInternLayer(InternBaseLayer):
    """Layer of InternViT 6B."""

    attention_norm: RMSNorm = weight("ln1", "hidden_size")
    feed_forward_norm: RMSNorm = weight("ln2", "hidden_size")


@dataclass(frozen=True, kw_only=True)
class InternLayerOptions(VisionLayerOptions):
    kind: type[InternBaseLayer]


def layer_kind(options: InternLayerOptions) -> type[InternBaseLayer]:
    return options.kind


@dataclass(frozen=True, kw_only=True)
class InternVisionOptions(TileOptions):
    projected_size: int  # between the two linears
    min_tiles: int
    max_tiles: int

    @property
    def positions(self) -> int:
        """Positions of the patches and the class embedding."""
        return self.patches + 1


class InternVision(VisionTower):
    options: InternVisionOptions
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    whole: Array = weight("v.class_embd", "hidden_size")
    positions: Table = weight("v.position_embd", "positions", "hidden_size")
    layers: Sequence[InternBaseLayer] = blocks("v.blk", choose=layer_kind)
    norm: ProjectorNorm = weight("mm.model.mlp.0", "merged_size")
    up: Linear = weight("mm.model.mlp.1", "projected_size", "merged_size")
    down: Linear = weight("mm.model.mlp.3", "text_size", "projected_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> InternVisionOptions:
        options = VisionOptions.read(file, text_size, image_size=448, mean=IMAGENET_MEAN, std=IMAGENET_STD)
        merge = merge_factor(file, options)
        least = required(file, "vision.preproc_min_tiles", 1)
        most = required(file, "vision.preproc_max_tiles", 12)
        if not least <= most <= _MAX_TILES:
            raise invalid(file, "vision.preproc_max_tiles", f"is {most}, with at least {least}")
        kind = InternLayer if "v.blk.0.ln1.bias" in file.tensors else RMSInternLayer
        layers = tuple(InternLayerOptions(**vars(layer), kind=kind) for layer in options.layers)
        return InternVisionOptions(
            **{**vars(options), "layers": layers},
            merge=merge,
            projected_size=table_rows(file, "mm.model.mlp.1.weight"),
            min_tiles=least,
            max_tiles=most,
        )

    def loaded(self) -> None:
        super().loaded()
        o = self.options
        first, values = self.positions.values[:1], self.positions.values[1:]
        self._first = self.whole.reshape(1, o.hidden_size) + first
        self._positions = values[self.ops.array(block_order(o.side, o.side, o.merge))]

    def use(self, tokenizer: Tokenizer) -> None:
        self._begin = Input(marker(tokenizer, "<img>"))
        self._end = Input(marker(tokenizer, "</img>"))

    def prepare(self, picture: Picture) -> Prepared:
        o, side = self.options, self.options.image_size
        rows, columns = closest_grid(*picture.size, side, o.min_tiles, o.max_tiles)
        cut = tiles(stretched(picture, columns * side, rows * side, BICUBIC), side)
        if len(cut) > 1:
            cut = np.concatenate([cut, stretched(picture, side, side, BICUBIC)[None]])
        return Prepared(cut, len(cut) * o.tile_rows, (rows, columns))

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        rows = []
        for patches in self.patch_rows(prepared.pixels, o.merge):
            hidden = self.ops.concatenate([self._first, self.embedding(patches) + self._positions])
            yield
            reading = self.reading([[o.positions]] * len(self.layers), slice_rows)
            hidden = (yield from through(self.layers, hidden, reading))[1:]
            merged = self.norm(hidden.reshape(-1, o.merged_size))
            rows.append(self.down(self.ops.gelu(self.up(merged))))
        return self.ops.concatenate(rows)

    def place(self, image: Image) -> list[Input]:
        return kept_together([self._begin, *rows_of(image), self._end], one_batch=False)

    @property
    def max_pixels(self) -> int:
        return (self.options.max_tiles + 1) * self.options.image_size**2

    @property
    def max_patches(self) -> int:
        return self.options.positions
