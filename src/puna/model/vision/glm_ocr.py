"""The eyes of GLM-OCR: as in Qwen2.5-VL without windows, but for norms of heads and the way to the text.

Reference: `GlmOcrVisionModel` in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from puna.images.pixels import CLIP_MEAN, CLIP_STD
from puna.model.metadata import table_rows
from puna.model.vision.options import VisionOptions
from puna.model.vision.qwen import FramesEmbedding, QwenTower, QwenVisionOptions, patch_places
from puna.model.vision.tower import Prepared
from puna.nn.layers import LayerNorm, Linear, RMSNorm, linear_many
from puna.nn.module import WeightSource, blocks, part, weight
from puna.nn.vision.attention import Slices
from puna.nn.vision.layers import (
    JoinedPatchAttention,
    PatchAttention,
    RMSNormLayer,
    VisionLayerOptions,
    through,
)
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class NormedHeads(PatchAttention):
    query_norm: RMSNorm = weight("attn_q_norm", "head_dim")
    key_norm: RMSNorm = weight("attn_k_norm", "head_dim")

    def project(self, x: Array) -> list[Array]:
        query, key, value = super().project(x)
        return [self.query_norm(query), self.key_norm(key), value]


class JoinedNormedHeads(NormedHeads, JoinedPatchAttention):
    """With one tensor for queries, keys and values."""


def attention_kind(options: VisionLayerOptions) -> type[NormedHeads]:
    return JoinedNormedHeads if options.joined else NormedHeads


class Layer(RMSNormLayer):
    attention: NormedHeads = part(choose=attention_kind)


class MergingLinear(Linear):
    """A linear of blocks of patches, stored as a convolution: [out, in, rows, columns]."""

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        values = source.values(f"{name}.weight", shape)
        if values is None:
            return None
        turned = np.ascontiguousarray(values.transpose(0, 2, 3, 1)).reshape(shape[0], -1)
        return cls.of_values(source, name, turned, source.vector(f"{name}.bias", shape[0]))


@dataclass(frozen=True, kw_only=True)
class GlmVisionOptions(QwenVisionOptions):
    projected_size: int  # inside the network after the merger


class GlmOcrVision(QwenTower):
    options: GlmVisionOptions
    markers: ClassVar[tuple[str, str]] = ("<|begin_of_image|>", "<|end_of_image|>")
    embedding: FramesEmbedding = weight(
        "v.patch_embd_0|v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size"
    )
    layers: Sequence[Layer] = blocks("v.blk")
    norm: RMSNorm = weight("v.post_ln", "hidden_size")
    merger: MergingLinear = weight("mm.patch_merger", "text_size", "hidden_size", "merge", "merge")
    inner: Linear = weight("mm.model.fc", "text_size", "text_size")
    inner_norm: LayerNorm = weight("mm.post_norm", "text_size")
    gate: Linear = weight("mm.gate", "projected_size", "text_size")
    up: Linear = weight("mm.up", "projected_size", "text_size")
    down: Linear = weight("mm.down", "text_size", "projected_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> GlmVisionOptions:
        options = VisionOptions.read(
            file, text_size, image_size=336, norm_eps=1e-5, mean=CLIP_MEAN, std=CLIP_STD,
            feed_forward=("v.blk.0.ffn_gate.weight",),
        )  # fmt: skip
        sizes = GlmVisionOptions.read_sizes(file, least_pixels=112**2, most_pixels=4 << 20)
        for key in ("least_pixels", "most_pixels"):  # of the two frames that a picture is taken for
            sizes[key] //= 2
        return GlmVisionOptions(**vars(options), **sizes, projected_size=table_rows(file, "mm.gate.weight"))

    def sized(self, width: int, height: int) -> tuple[int, int]:
        unit = self.options.unit
        if (shorter := min(width, height)) < unit:  # made as large as one row first
            width, height = int(width * (unit / shorter)), int(height * (unit / shorter))
        return super().sized(width, height)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        (patches,) = self.patch_rows(prepared.pixels, o.merge)
        hidden = self.embedding(patches)
        yield
        places = patch_places(*prepared.grid, o.merge)
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = self.norm((yield from through(self.layers, hidden, reading)))
        rows = self.ops.gelu(self.inner_norm(self.inner(self.merger(self.merged(hidden)))))
        return self.down(self.ops.swiglu(*linear_many(rows, self.gate, self.up)))
