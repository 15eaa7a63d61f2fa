"""Vision tower of DeepSeek-OCR 2: SAM, then a Qwen 2 in which learned queries read SAM's output.

Wei et al., arXiv:2601.20552. Patches attend to each other, queries to the patches and to earlier queries;
each query becomes one row. The tiles follow one another, then the whole picture, and one separator row.
Reference: `DeepseekOcr2VisionModel` in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from puna.errors import ModelError
from puna.gguf.metadata import invalid, positive, required, table_rows
from puna.nn.layers import Linear, RMSNorm
from puna.nn.module import blocks, part, weight
from puna.ops import Array, Rope
from puna.vision.layers.attention import Groups, PatchKeys, Slices
from puna.vision.layers.layers import (
    PatchAttention,
    Patches,
    RMSNormLayer,
    Table,
    VisionLayerOptions,
    through,
)
from puna.vision.layers.sam import Sam
from puna.vision.options import VisionOptions
from puna.vision.towers.deepseek_ocr import SamTower, SamTowerOptions

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_MAX_TILES: Final = 6
_TILE_SHARE: Final = Fraction(3, 4)  # tiles of 768 pixels for a whole of 1024
_ROPE_BASE: Final = 1e6


@dataclass(frozen=True, kw_only=True)
class QueryLayerOptions(VisionLayerOptions):
    kv_heads: int

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


class QueryAttention(PatchAttention):
    options: QueryLayerOptions
    key: Linear = weight("attn_k", "kv_size", "hidden_size")
    value: Linear = weight("attn_v", "kv_size", "hidden_size")

    def project(self, x: Array) -> list[Array]:
        """Return queries [rows, heads, head_dim], and keys and values [rows, kv_heads, head_dim]."""
        return [each.reshape(len(x), -1, self.options.head_dim) for each in self.linears(x)]


class QueryLayer(RMSNormLayer):
    attention: QueryAttention = part()


@dataclass(frozen=True, kw_only=True)
class DeepSeekOcr2VisionOptions(SamTowerOptions):
    kv_heads: int
    rope_base: float

    @property
    def tile_rows(self) -> int:
        return self.tile_side**2

    @property
    def whole_rows(self) -> int:
        return self.whole_side**2


class DeepSeekOcr2Vision(SamTower):
    options: DeepSeekOcr2VisionOptions
    activations = ("gelu",)  # SAM's; the layers have SiLU
    sam: Sam = part("v.sam", options="sam")
    #: Named by the sides of the published models' pictures.
    tile_queries: Table = weight("v.resample_query_768", "tile_rows", "hidden_size")
    whole_queries: Table = weight("v.resample_query_1024", "whole_rows", "hidden_size")
    layers: Sequence[QueryLayer] = blocks("v.blk")
    norm: RMSNorm = weight("v.post_ln", "hidden_size")
    projection: Linear = weight("mm.model.fc", "text_size", "hidden_size")
    #: With this spelling in the published models.
    picture_end: Array = weight("v.view_seperator", "text_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> DeepSeekOcr2VisionOptions:
        options = VisionOptions.read(file, text_size, image_size=1024, patch_size=16)
        kv_heads = required(file, "vision.attention.head_count_kv", options.heads)
        if options.heads % kv_heads:
            complaint = f"is {kv_heads}, which does not divide the {options.heads} heads"
            raise invalid(file, "vision.attention.head_count_kv", complaint)
        layers = tuple(QueryLayerOptions(**vars(layer), kv_heads=kv_heads) for layer in options.layers)
        sizes = SamTowerOptions.read_sizes(file, options.hidden_size, share=_TILE_SHARE, max_tiles=_MAX_TILES)
        found = DeepSeekOcr2VisionOptions(
            **{**vars(options), "layers": layers}, **sizes, kv_heads=kv_heads,
            rope_base=positive(file, "vision.rope.freq_base", _ROPE_BASE),
        )  # fmt: skip
        for size, rows in ((768, found.tile_rows), (1024, found.whole_rows)):
            name = f"v.resample_query_{size}.weight"
            if (given := table_rows(file, name)) != rows:
                raise ModelError(f"{file.path}: tensor '{name}' has {given} queries, expected {rows}")
        return found

    def loaded(self) -> None:
        o = self.options
        self.keys = PatchKeys(self.ops, o.kv_heads, o.head_dim)
        frequencies = o.rope_base ** (-2 * np.arange(o.head_dim // 2) / o.head_dim)
        self._rope = Rope(frequencies.astype(np.float32), neox=True)

    def rows(self, seen: Array, slice_rows: int) -> Slices[Array]:
        count = len(seen)
        queries = self.tile_queries if count == self.options.tile_rows else self.whole_queries
        hidden = self.ops.concatenate([seen, queries.values])
        reach = np.concatenate([np.full(count, count), count + np.arange(1, count + 1)]).astype(np.int32)
        groups = Groups(self.ops.array(np.zeros(2 * count, np.int32)), self.ops.array(reach))
        places = self.ops.array(np.arange(2 * count, dtype=np.int32))
        self.keys.reserve(2 * count)
        reading = Patches(self.keys, [groups] * len(self.layers), slice_rows, self._rope, places)
        hidden = yield from through(self.layers, hidden, reading)
        return self.projection(self.norm(hidden[count:]))

    @property
    def separators(self) -> Sequence[Array]:
        return (self.picture_end,)

    def order(self, rows: int, columns: int) -> NDArray[np.int64]:
        """Return all rows as they are."""
        count = rows * columns * self.options.tile_rows + self.options.whole_rows
        return np.arange(count + 1)
