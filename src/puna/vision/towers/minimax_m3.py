"""Vision tower of MiniMax-M3: CLIP on pictures of about their own size, rotated by the axes of a place.

Reference: `MiniMaxM3VLVisionModel` in Hugging Face transformers. A third of a head rotates by time, which is
0 for pictures, a third by height and a third by width. Rows have positions like tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from puna.batch import Image, Input
from puna.gguf.metadata import invalid, table_rows
from puna.nn.layers import LayerNorm, Linear
from puna.nn.module import WeightSource, blocks, part, weight
from puna.ops import Array
from puna.vision.layers.attention import Slices, axial_rope
from puna.vision.layers.layers import ExactLayer, PatchAttention, through
from puna.vision.options import VisionOptions
from puna.vision.pixels import CLIP_MEAN, CLIP_STD
from puna.vision.tower import Prepared, kept_together, rows_of
from puna.vision.towers.qwen import FramesEmbedding, QwenTower, QwenVisionOptions, patch_places

if TYPE_CHECKING:
    from puna.gguf import GGUFFile

_MIN_PIXELS: Final = 4 * 28**2
_MAX_PIXELS: Final = 672**2


class AxialLinear(Linear):
    """Queries or keys, whose rows files order by the axis that rotates them: time, height, width, none.

    Rows that height and width rotate are brought to the front of each head, first halves of pairs first.
    """

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        stored = source.matrix(f"{name}.weight", (shape[0], shape[1]))
        if stored is None:
            return None
        rows = axial_rows(options.heads, options.head_dim)
        chosen = stored.chosen_rows(rows)
        source.ops.pack(chosen)
        stored.drop_data()
        bias = source.vector(f"{name}.bias", shape[0])
        return cls(source.ops, chosen, None if bias is None else bias[source.ops.array(rows)], rows)


def axis_pairs(head_dim: int) -> int:
    """Return the pairs of a head that each axis rotates."""
    return head_dim // 6


def axial_rows(heads: int, head_dim: int) -> NDArray[np.intp]:
    """Return the rows of queries or keys in files in the order of `AxialLinear`: [heads * head_dim]."""
    pairs, own = axis_pairs(head_dim), np.arange(head_dim)
    time, rotated, rest = np.split(own, [2 * pairs, 6 * pairs])
    by_half = rotated.reshape(2, 2, pairs).swapaxes(0, 1).reshape(-1)  # [axes, halves, pairs] before
    order = np.concatenate([by_half, time, rest])
    rows: NDArray[np.intp] = np.arange(heads)[:, None] * head_dim + order
    return rows.reshape(-1)


class AxialAttention(PatchAttention):
    query: AxialLinear = weight("attn_q", "hidden_size", "hidden_size")
    key: AxialLinear = weight("attn_k", "hidden_size", "hidden_size")


class MiniMaxLayer(ExactLayer):
    attention: AxialAttention = part()


@dataclass(frozen=True, kw_only=True)
class MiniMaxVisionOptions(QwenVisionOptions):
    patch_inner_size: int  # inside the projector's network for each patch
    row_inner_size: int  # inside its network for each row

    @property
    def joined_size(self) -> int:
        """Values of the projected patches of a row."""
        return self.text_size * self.merge**2


class MiniMaxM3Vision(QwenTower):
    options: MiniMaxVisionOptions
    markers = ("]<]start of image[>[", "]<]end of image[>[")
    embedding: FramesEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    first_norm: LayerNorm = weight("v.pre_ln", "hidden_size")
    layers: Sequence[MiniMaxLayer] = blocks("v.blk")
    patch_up: Linear = weight("mm.1", "patch_inner_size", "hidden_size")
    patch_down: Linear = weight("mm.2", "text_size", "patch_inner_size")
    row_up: Linear = weight("mm.merger.fc1", "row_inner_size", "joined_size")
    row_down: Linear = weight("mm.merger.fc2", "text_size", "row_inner_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> MiniMaxVisionOptions:
        options = VisionOptions.read(
            file, text_size, image_size=2016, norm_eps=1e-5, mean=CLIP_MEAN, std=CLIP_STD,
            feed_forward=("v.blk.0.ffn_up.weight",),
        )  # fmt: skip
        if not axis_pairs(options.head_dim):
            key = "vision.attention.head_count"
            complaint = f"is {options.heads}: {options.head_dim} values of a head are too few for three axes"
            raise invalid(file, key, complaint)
        sizes = MiniMaxVisionOptions.read_sizes(file, min_pixels=_MIN_PIXELS, max_pixels=_MAX_PIXELS)
        return MiniMaxVisionOptions(
            **vars(options), **sizes, patch_inner_size=table_rows(file, "mm.1.weight"),
            row_inner_size=table_rows(file, "mm.merger.fc1.weight"),
        )  # fmt: skip

    def loaded(self) -> None:
        super().loaded()
        self._rope = axial_rope(4 * axis_pairs(self.options.head_dim), self.options.rope_base)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        (patches,) = self.patch_rows(prepared.pixels, o.merge)
        hidden = self.first_norm(self.embedding(patches))
        yield
        places = patch_places(*prepared.grid, o.merge)
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = yield from through(self.layers, hidden, reading)
        projected = self.patch_down(self.ops.gelu(self.patch_up(hidden)))
        return self.row_down(self.ops.gelu(self.row_up(projected.reshape(-1, o.joined_size))))

    def place(self, image: Image) -> list[Input]:
        return kept_together([self._begin, *rows_of(image), self._end], one_batch=False)
