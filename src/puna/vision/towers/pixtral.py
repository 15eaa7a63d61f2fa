"""Vision tower of Mistral Small 3.1 and Pixtral: pictures at their own size, rotation by row and column.

Agrawal et al., arXiv:2410.07073, section 2. Each block of patches becomes one row; a separator token ends
each line of rows. LightOnOCR has the same tower, and no tokens around or between its rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from puna.batch import Image, Input
from puna.gguf.metadata import first_of, invalid, positive, required, table_rows
from puna.nn.layers import Linear, RMSNorm, Unused
from puna.nn.module import WeightSource, blocks, weight
from puna.ops import Array, Backend, Rope
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices
from puna.vision.layers.layers import PatchEmbedding, RMSNormLayer, through
from puna.vision.options import VisionOptions
from puna.vision.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, stretched
from puna.vision.registry import PROJECTOR_ARCHITECTURE
from puna.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of
from puna.vision.towers.qwen import patch_places

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer


class BlockLinear(Linear):
    """Linear over blocks of patches whose weights [out, channels * block] have the block innermost.

    Blocks are read patch by patch; the shape is out, channels, block.
    """

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        out, channels, block = shape
        values = source.values(f"{name}.weight", (out, channels * block))
        if values is None:
            return None
        turned = np.ascontiguousarray(values.reshape(out, channels, block).swapaxes(1, 2))
        return cls.of_values(source, name, turned.reshape(out, -1))


@dataclass(frozen=True, kw_only=True)
class PixtralVisionOptions(VisionOptions):
    merge: int
    longest_edge: int  # pixels
    rope_base: float
    halves: bool  # whether rotated pairs are half a head apart, not adjacent
    projected_size: int

    @property
    def block(self) -> int:
        """Patches per row."""
        return self.merge**2

    @property
    def unit(self) -> int:
        return self.patch_size * self.merge

    @property
    def break_size(self) -> int:
        return self.text_size


class PixtralVision(VisionTower):
    options: PixtralVisionOptions
    activations = ("silu",)
    embedding: PatchEmbedding = weight(
        "v.patch_conv|v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size"
    )
    first_norm: RMSNorm = weight("v.encoder_norm|v.pre_ln", "hidden_size")
    layers: Sequence[RMSNormLayer] = blocks("v.blk")
    norm: RMSNorm | None = weight("mm.norm|mm.input_norm", "hidden_size", optional=True)
    merger: BlockLinear | None = weight(
        "mm.patch_merger.merging_layer|mm.patch_merger", "hidden_size", "hidden_size", "block", optional=True
    )
    up: Linear = weight("mm.linear_1|mm.1", "projected_size", "hidden_size")
    down: Linear = weight("mm.linear_2|mm.2", "text_size", "projected_size")
    line_end: Unused | None = weight("v.token_embd.img_break", "break_size", optional=True)

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> PixtralVisionOptions:
        options = VisionOptions.read(
            file, text_size, image_size=1540, norm_eps=1e-5, mean=CLIP_MEAN, std=CLIP_STD,
            feed_forward=("v.blk.0.ffn_gate.weight",),
        )  # fmt: skip
        merges = any(name.startswith("mm.patch_merger") for name in file.tensors)
        key = first_of(file, "vision.spatial_merge_size", "spatial_merge_size")
        merge = required(file, key, 2) if merges else 1
        if merge > 8:
            raise invalid(file, key, f"is {merge}, which is more than any model has")
        edge = required(file, "vision.longest_edge", options.image_size)
        if edge > 1 << 13:
            raise invalid(file, "vision.longest_edge", f"is {edge}, which is more than is supported")
        projected = table_rows(file, "mm.linear_1.weight") or table_rows(file, "mm.1.weight")
        return PixtralVisionOptions(
            **vars(options),
            merge=merge,
            longest_edge=edge,
            rope_base=positive(file, _rope_key(file), 10000.0),
            projected_size=projected,
            # llama.cpp's converter reorders queries and keys, Ollama's does not.
            halves=file.architecture != PROJECTOR_ARCHITECTURE,
        )

    def loaded(self) -> None:
        super().loaded()
        dim = self.options.head_dim
        every = self.options.rope_base ** (-2 * np.arange(dim // 2) / dim)
        axes = np.repeat(np.arange(2, dtype=np.int32), dim // 4)
        # Rows take the even frequencies, columns the odd ones.
        factors = np.concatenate([every[::2], every[1::2]]).astype(np.float32)
        self._rope = Rope(factors, neox=self.options.halves, axes=axes)

    def use(self, tokenizer: Tokenizer) -> None:
        self._break = Input(marker(tokenizer, "[IMG_BREAK]"))
        self._end = Input(marker(tokenizer, "[IMG_END]"))

    def prepare(self, picture: Picture) -> Prepared:
        o, (width, height) = self.options, picture.size
        if (ratio := max(width, height) / o.longest_edge) > 1:
            width, height = max(math.floor(width / ratio), 1), max(math.floor(height / ratio), 1)
        grid = -(-height // o.unit), -(-width // o.unit)
        pixels = stretched(picture, grid[1] * o.unit, grid[0] * o.unit, BICUBIC)
        return Prepared(pixels[None], grid[0] * grid[1], grid)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        (patches,) = self.patch_rows(prepared.pixels, o.merge)
        hidden = self.first_norm(self.embedding(patches))
        yield
        places = patch_places(*prepared.grid, o.merge)
        reading = self.reading([[len(patches)]] * len(self.layers), slice_rows, self._rope, places)
        hidden = yield from through(self.layers, hidden, reading)
        if self.norm is not None:
            hidden = self.norm(hidden)
        if self.merger is not None:
            hidden = self.merger(hidden.reshape(-1, o.hidden_size * o.block))
        return self.down(self.ops.gelu(self.up(hidden)))

    def place(self, image: Image) -> list[Input]:
        height, width = image.pixels.grid
        inputs: list[Input] = []
        for line in range(height):
            inputs += rows_of(image, begin=line * width, end=(line + 1) * width)
            inputs.append(self._break if line < height - 1 else self._end)
        return kept_together(inputs, one_batch=False)

    @property
    def max_patches(self) -> int:
        side = -(-self.options.longest_edge // self.options.unit) * self.options.merge
        return side**2


class LightOnNorm(RMSNorm):
    """Norm with the text model's epsilon, which differs from the tower's."""

    def __init__(self, ops: Backend, weight: Array, eps: float) -> None:
        super().__init__(ops, weight, 1e-6)


class LightOnVision(PixtralVision):
    """LightOnOCR's tower. Reference: `LightOnOcrModel` in Hugging Face transformers."""

    norm: LightOnNorm = weight("mm.input_norm", "hidden_size")

    def use(self, tokenizer: Tokenizer) -> None:
        """Look up nothing: no tokens are around its images."""

    def place(self, image: Image) -> list[Input]:
        return kept_together(rows_of(image), one_batch=False)


def _rope_key(file: GGUFFile) -> str:
    """Return the key of the rotation's base; files converted from Mistral's format name it as for text."""
    if file.architecture != PROJECTOR_ARCHITECTURE:
        return "vision.rope.freq_base"
    return first_of(file, "vision.rope.freq_base", "rope.freq_base")
