"""The eyes of MiniCPM-V 4.6: SigLIP on slices of a picture, whose patches are merged between two layers.

Reference: `MiniCPMV4_6Model` in Hugging Face transformers. Four neighbours look at each other and become one;
after the last layer four of those become a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from puna.model.metadata import invalid, required, table_rows
from puna.model.vision.minicpmv import SlicingOptions, SlicingVision
from puna.model.vision.options import VisionOptions, with_named_layers
from puna.nn.feed_forward import gelu_tanh
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import Module, part, weight
from puna.nn.vision.attention import Slices, pieces
from puna.nn.vision.layers import Patches, VisionLayer, VisionLayerOptions, pooled, through
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.images.pixels import Pixels

#: Neighbours that become one, and those of a side.
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
    """The first half of a layer."""

    attention_norm: LayerNorm = weight("ln1", "hidden_size")

    def _rest(self, hidden: Array, attended: Array) -> Array:
        total: Array = hidden + attended
        return total


class WindowMerger(Module):
    """Makes one of four neighbours, which is their mean and what a network says of all of them."""

    options: MergerOptions
    window: WindowAttention = part(options="layer")
    norm: LayerNorm = weight("ds_ln", "merged_size")
    up: Linear = weight("ds_ffn_up", "inner_size", "merged_size")
    down: Linear = weight("ds_ffn_down", "hidden_size", "inner_size")

    def forward(self, hidden: Array, patches: Patches) -> Slices[Array]:
        """[windows * 4, hidden] to [windows, hidden]."""
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
    merges: int  # 2, or 1 if patches are merged after the last layer alone
    merged_after: int  # the layer
    merger: MergerOptions | None
    projected_size: int

    @property
    def unit(self) -> int:
        return self.patch_size << self.merges  # `_SIDE` being 2

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
    def most_patches(self) -> int:
        """Those of slices that are as thin as one row."""
        return 2 * self.options.patches


def nested_order(height: int, width: int, times: int) -> NDArray[np.int64]:
    """The numbers of a grid's places in blocks of 2 x 2, in blocks of 2 x 2 of those, `times` times over."""
    numbers: NDArray[np.int64] = np.arange(height * width)
    for level in range(times):
        side = _SIDE ** (level + 1)
        cut = numbers.reshape(height // side, _SIDE, width // side, _SIDE, -1)
        numbers = cut.swapaxes(1, 2).reshape(-1)
    return numbers


def _merging_layer(file: GGUFFile, layers: int) -> int:
    """After which layer patches are merged. Raises `ModelError`."""
    key = "vision.wa_layer_indexes"
    listed: Any = file.get(key)
    if listed is None:
        listed = [min(6, layers - 1)]
    if isinstance(listed, str | int | float) or len(listed) != 1 or type(listed[0]) is not int:
        raise invalid(file, key, "should name one layer")
    if not 0 <= listed[0] < layers:
        raise invalid(file, key, f"names layer {listed[0]} of {layers}")
    return int(listed[0])
