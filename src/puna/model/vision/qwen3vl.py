"""The eyes of Qwen3-VL and Qwen 3.5: SigLIP 2, several of whose layers speak to the text.

Qwen Team, arXiv:2511.21631. What becomes of an image after some of the layers goes to the first layers of the
text model, beside what becomes of it in the end (DeepStack: Meng et al., arXiv:2406.04334).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from puna.errors import ModelError
from puna.model.metadata import flags, invalid, table_rows
from puna.model.vision.options import VisionOptions
from puna.model.vision.qwen import FramesEmbedding, QwenTower, QwenVisionOptions, patch_places
from puna.model.vision.tower import Prepared
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import Module, WeightSource, blocks, weight
from puna.nn.vision.attention import Slices
from puna.nn.vision.interpolation import resized_positions
from puna.nn.vision.layers import LayerNormLayer, Table
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


class JoinedFramesEmbedding(FramesEmbedding):
    """One whose weights of both frames are one tensor: [out, channels, 2, size, size], in Ollama's files."""

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


class Speaker(Module):
    """What makes of the patches after some layer what a layer of the text model is told."""

    norm: LayerNorm = weight("norm", "merged_size")
    up: Linear = weight("linear_fc1|fc1", "merged_size", "merged_size")
    down: Linear = weight("linear_fc2|fc2", "text_size", "merged_size")

    def __call__(self, merged: Array) -> Array:
        """[rows, merged_size] to [rows, text_size]."""
        return self.down(self.ops.gelu(self.up(self.norm(merged))))


class Speakers:
    """Those of all layers that have one, by the layer's number."""

    def __init__(self, speakers: dict[int, Speaker]) -> None:
        self.of_layer = speakers

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Qwen3VisionOptions
    ) -> Self:
        return cls(
            {
                layer: Speaker.load(source, options, prefix)
                for layer, prefix in zip(options.speaking, options.speakers, strict=True)
            }
        )


@dataclass(frozen=True, kw_only=True)
class Qwen3VisionOptions(QwenVisionOptions):
    table_side: int  # of the square of positions that is interpolated
    speaking: tuple[int, ...]  # layers
    speakers: tuple[str, ...]  # how the names of their tensors begin

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
    speakers: Speakers = weight("v")
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
            raise ModelError(f"{file.path}: a table of {positions} positions is no square")
        speaking, speakers = _speaking(file, len(options.layers))
        return Qwen3VisionOptions(
            **vars(options),
            **QwenVisionOptions.read_sizes(file, least_pixels=1 << 16),
            table_side=side,
            speaking=speaking,
            speakers=speakers,
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
        spoken = []
        for layer in self.layers:
            hidden = yield from layer.forward(hidden, reading)
            if (speaker := self.speakers.of_layer.get(layer.index)) is not None:
                spoken.append(speaker(self.merged(hidden)))
                yield
        rows = self.down(self.ops.gelu(self.up(self.merged(self.norm(hidden)))))
        return self.ops.join([rows, *spoken])


def _speaking(file: GGUFFile, count: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The layers that speak to the text, and how the names of the tensors begin by which they do."""
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
