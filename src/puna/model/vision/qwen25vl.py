"""The eyes of Qwen2.5-VL: most layers look through windows.

Bai et al., arXiv:2502.13923, section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from puna.images.pixels import CLIP_MEAN, CLIP_STD
from puna.model.metadata import invalid, required
from puna.model.vision.options import VisionOptions
from puna.model.vision.qwen import FramesEmbedding, QwenTower, QwenVisionOptions, patch_places
from puna.model.vision.tower import Prepared
from puna.nn.layers import Linear, RMSNorm
from puna.nn.module import blocks, weight
from puna.nn.vision.attention import Slices
from puna.nn.vision.layers import RMSNormLayer, through
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True, kw_only=True)
class Qwen25VisionOptions(QwenVisionOptions):
    window: int  # rows of the side of a window
    full: frozenset[int]  # layers that look at everything


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
        """The rows of a grid window by window, and how many each window has."""
        row, column = (axis.reshape(-1) for axis in np.mgrid[:height, :width])
        across = -(-width // self.options.window)
        window = row // self.options.window * across + column // self.options.window
        return np.argsort(window, kind="stable"), np.bincount(window).tolist()


def _full_layers(file: GGUFFile, count: int) -> frozenset[int]:
    """The layers that look at everything: listed, or each last of a period."""
    listed = file.get("vision.fullatt_block_indexes")
    if listed is None:
        period = required(file, "vision.n_wa_pattern", 8)
        return frozenset(index for index in range(count) if (index + 1) % period == 0)
    if isinstance(listed, str | int | float) or not all(type(index) is int for index in listed[:count]):
        raise invalid(file, "vision.fullatt_block_indexes", "should list layers")
    return frozenset(listed[:count])
