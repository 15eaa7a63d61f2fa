"""Vision tower of GLM-OCR and GLM-4.1V: Qwen2.5-VL's without windows, and with another projector.

GLM-OCR normalises heads; GLM-4.1V normalises patches before the layers and has learned positions too.
References: `GlmOcrVisionModel` and `Glm4vVisionModel` in Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import numpy as np

from puna.gguf.metadata import table_rows
from puna.nn.layers import LayerNorm, Linear, RMSNorm, linear_many
from puna.nn.module import WeightSource, blocks, part, weight
from puna.ops import Array
from puna.vision.layers.attention import Slices
from puna.vision.layers.interpolation import sampled_positions
from puna.vision.layers.layers import (
    JoinedPatchAttention,
    PatchAttention,
    RMSNormLayer,
    Table,
    VisionLayerOptions,
    through,
)
from puna.vision.layers.layers import attention_kind as plain_attention_kind
from puna.vision.options import VisionOptions
from puna.vision.pixels import CLIP_MEAN, CLIP_STD
from puna.vision.tower import Prepared, square_root
from puna.vision.towers.qwen import FramesEmbedding, QwenTower, QwenVisionOptions, patch_places

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

#: Pixels of two frames, if the file gives no limit.
_MAX_PIXELS: Final = 2 * 28**2 * 6144
_MAX_OCR_PIXELS: Final = 4 << 20


class NormedHeads(PatchAttention):
    query_norm: RMSNorm = weight("attn_q_norm", "head_dim")
    key_norm: RMSNorm = weight("attn_k_norm", "head_dim")

    def project(self, x: Array) -> list[Array]:
        query, key, value = super().project(x)
        return [self.query_norm(query), self.key_norm(key), value]


class JoinedNormedHeads(NormedHeads, JoinedPatchAttention):
    """Attention with norms of each head and one tensor for queries, keys and values."""


@dataclass(frozen=True, kw_only=True)
class GlmLayerOptions(VisionLayerOptions):
    normed: bool  # whether heads are normalised


def attention_kind(options: GlmLayerOptions) -> type[PatchAttention]:
    if not options.normed:
        return plain_attention_kind(options)
    return JoinedNormedHeads if options.joined else NormedHeads


class GlmLayer(RMSNormLayer):
    attention: PatchAttention = part(choose=attention_kind)


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
    projected_size: int  # inside the projector's network
    positions: int  # learned, of a square of patches; 0 if there are none


class GlmOcrVision(QwenTower):
    options: GlmVisionOptions
    activations = ("silu",)
    markers: ClassVar[tuple[str, str]] = ("<|begin_of_image|>", "<|end_of_image|>")
    embedding: FramesEmbedding = weight(
        "v.patch_embd_0|v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size"
    )
    embedding_norm: RMSNorm | None = weight("v.norm_embd", "hidden_size", optional=True)
    positions: Table | None = weight("v.position_embd", "positions", "hidden_size", optional=True)
    layers: Sequence[GlmLayer] = blocks("v.blk")
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
        positions = table_rows(file, "v.position_embd.weight")
        most = _MAX_PIXELS if positions else _MAX_OCR_PIXELS
        sizes = GlmVisionOptions.read_sizes(file, min_pixels=112**2, max_pixels=most)
        for key in ("min_pixels", "max_pixels"):  # a picture counts as two frames
            sizes[key] //= 2
        normed = "v.blk.0.attn_q_norm.weight" in file.tensors
        layers = tuple(GlmLayerOptions(**vars(each), normed=normed) for each in options.layers)
        return GlmVisionOptions(
            **{**vars(options), "layers": layers}, **sizes, positions=positions,
            projected_size=table_rows(file, "mm.gate.weight"),
        )  # fmt: skip

    def loaded(self) -> None:
        super().loaded()
        if self.positions is not None:
            side = square_root(self.options.positions)
            self._table = self.ops.numpy(self.positions.values).reshape(side, side, -1)

    def sized(self, width: int, height: int) -> tuple[int, int]:
        unit = self.options.unit
        if (shorter := min(width, height)) < unit:  # enlarge to one row first
            width, height = int(width * (unit / shorter)), int(height * (unit / shorter))
        return super().sized(width, height)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        (patches,) = self.patch_rows(prepared.pixels, o.merge)
        hidden = self.embedding(patches)
        yield
        places = patch_places(*prepared.grid, o.merge)
        if self.embedding_norm is not None:
            hidden = self.embedding_norm(hidden)
        if self.positions is not None:
            height, width = (size * o.merge for size in prepared.grid)
            learned = sampled_positions(self._table, height, width)
            hidden = hidden + self.ops.array(learned[places[:, 0] * width + places[:, 1]])
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = self.norm((yield from through(self.layers, hidden, reading)))
        rows = self.ops.gelu(self.inner_norm(self.inner(self.merger(self.merged(hidden)))))
        return self.down(self.ops.swiglu(*linear_many(rows, self.gate, self.up)))
