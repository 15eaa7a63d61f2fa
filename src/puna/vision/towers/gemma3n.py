"""Vision tower of Gemma 3n: MobileNet V5, whose last two stages are fused and pooled to 256 rows.

Reference: `Gemma3nModel` in Hugging Face transformers, `MobileNetV5Encoder` in timm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from puna.batch import Image, Input
from puna.errors import ModelError
from puna.gguf.metadata import first_of, invalid, positive, required, table_rows
from puna.nn.feed_forward import gelu_tanh
from puna.nn.layers import Linear, RMSNorm, unit_norm
from puna.nn.module import blocks, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import PatchKeys, Slices
from puna.vision.layers.convolution import Convolution, Pointwise, results, rimmed
from puna.vision.layers.layers import Table, pooled
from puna.vision.layers.mobilenet import BlockOptions, Stage, StageOptions, in_pieces
from puna.vision.options import VisionOptions, three_numbers
from puna.vision.pixels import BILINEAR, normalised, stretched
from puna.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of, square_root, text

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

_BLOCK = re.compile(r"v\.blk\.(\d{1,3})\.(\d{1,4})\.")
#: Number of stages that are fused; the first has the larger grid.
_JOINED: Final = 2
_STEP: Final = 2
_STEM_KERNEL: Final = 3
#: Bounds beyond which a file is damaged; the published model has 768 and 84.
_LARGEST_IMAGE: Final = 4096
_MAX_BLOCKS: Final = 1024
_LARGEST_KERNEL: Final = 9


@dataclass(frozen=True, kw_only=True)
class Gemma3nVisionOptions(VisionOptions):
    stages: tuple[StageOptions, ...]
    stem_size: int
    fused_size: int  # inside the fusing network
    row_side: int  # side of the square of rows
    words: int  # size of the tower's own vocabulary

    @property
    def stem_kernel(self) -> int:
        return _STEM_KERNEL

    @property
    def joined_size(self) -> int:
        return sum(stage.blocks[-1].out_size for stage in self.stages[-_JOINED:])

    @property
    def sides(self) -> list[int]:
        """Side of the grid after the stem and after each stage."""
        found = [results(self.image_size, _STEP)]
        for stage in self.stages:
            found.append(found[-1])
            for block in stage.blocks:
                found[-1] = results(found[-1], block.step)
        return found


class Gemma3nVision(VisionTower):
    options: Gemma3nVisionOptions
    stem: Convolution = weight("v.conv_stem.conv", "stem_size", "channels", "stem_kernel", "stem_kernel")
    stem_norm: RMSNorm = weight("v.conv_stem.bn", "stem_size")
    stages: Sequence[Stage] = blocks("v.blk", options="stages")
    wide: Pointwise = weight("v.msfa.ffn.pw_exp.conv", "fused_size", "joined_size")
    wide_norm: RMSNorm = weight("v.msfa.ffn.pw_exp.bn", "fused_size")
    narrow: Pointwise = weight("v.msfa.ffn.pw_proj.conv", "hidden_size", "fused_size")
    narrow_norm: RMSNorm = weight("v.msfa.ffn.pw_proj.bn", "hidden_size")
    norm: RMSNorm = weight("v.msfa.norm", "hidden_size")
    said: Table = weight("mm.embedding", "words", "hidden_size")
    word_norm: RMSNorm = weight("mm.hard_emb_norm", "hidden_size")
    row_norm: RMSNorm = weight("mm.soft_emb_norm", "hidden_size")
    projection: Linear = weight("mm.input_projection", "text_size", "hidden_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Gemma3nVisionOptions:
        size = required(file, "vision.image_size", 768)
        if size > _LARGEST_IMAGE:
            raise invalid(file, "vision.image_size", f"is {size}, which is more than any model has")
        tokens = required(file, first_of(file, "mm_tokens_per_image", "mm.tokens_per_image"), 256)
        eps = positive(file, "vision.attention.layer_norm_epsilon", 1e-6)
        options = Gemma3nVisionOptions(
            image_size=size,
            patch_size=1,
            hidden_size=required(file, "vision.embedding_length"),
            text_size=text_size,
            norm_eps=eps,
            mean=three_numbers(file, "vision.image_mean", (0.0, 0.0, 0.0)),
            std=three_numbers(file, "vision.image_std", (1.0, 1.0, 1.0)),
            layers=(),
            stages=_read_stages(file, eps),
            stem_size=table_rows(file, "v.conv_stem.conv.weight"),
            fused_size=table_rows(file, "v.msfa.ffn.pw_exp.conv.weight"),
            row_side=square_root(tokens),
            words=table_rows(file, "mm.embedding.weight"),
        )
        large, small = options.sides[-_JOINED:]
        if large % small or large % options.row_side:
            raise ModelError(
                f"{file.path}: grids of {large} x {large} and {small} x {small} places do not become "
                f"{options.row_side} x {options.row_side} rows"
            )
        return options

    def loaded(self) -> None:
        self.keys = PatchKeys(self.ops, 1, 1)  # placeholder: attention blocks make their own
        self._unit_norm = unit_norm(self.ops, self.options.text_size, self.options.norm_eps)
        # The end token comes from the tower's vocabulary, not the text model's.
        self._end_row = self._unit_norm(self.projection(self.word_norm(self.said.values[:1])))

    def use(self, tokenizer: Tokenizer) -> None:
        self._begin = [*text(tokenizer, "\n\n"), Input(marker(tokenizer, "<start_of_image>"))]
        self._end = text(tokenizer, "\n\n")

    def prepare(self, picture: Picture) -> Prepared:
        side = self.options.image_size
        return Prepared(stretched(picture, side, side, BILINEAR)[None], self.options.row_side**2 + 1)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        grid = self.ops.array(normalised(prepared.pixels.reshape(-1, o.channels), o.mean, o.std))
        made = []
        for part in self.stem.parts(rimmed(self.ops, [grid]), o.image_size, _STEP, slice_rows):
            made.append(gelu_tanh(self.ops, self.stem_norm(part)))
            yield
        grid, found = self.ops.concatenate(made), []
        for stage, side in zip(self.stages, o.sides, strict=False):
            grid = yield from stage.forward(grid, side, slice_rows)
            found.append(grid)
        joined, made = self._joined(*found[-_JOINED:]), []
        for part in in_pieces(joined, slice_rows):
            wide = gelu_tanh(self.ops, self.wide_norm(self.wide(part)))
            made.append(self.narrow_norm(self.narrow(wide)))
            yield
        side = o.sides[-_JOINED]
        narrow = self.ops.concatenate(made).reshape(side, side, o.hidden_size)
        rows = self.norm(pooled(narrow, side // o.row_side)) * math.sqrt(o.hidden_size)
        rows = self._unit_norm(self.projection(self.row_norm(rows)))
        return self.ops.concatenate([rows, self._end_row])

    def _joined(self, large: Array, small: Array) -> Array:
        """Concatenate two stages' outputs for each place of the larger grid: [large², both sizes]."""
        side, factor = self.options.sides[-_JOINED], self.options.sides[-_JOINED] // self.options.sides[-1]
        row, column = np.divmod(np.arange(side**2), side)
        places = row // factor * self.options.sides[-1] + column // factor
        return self.ops.join([large, small[self.ops.array(places)]])

    def place(self, image: Image) -> list[Input]:
        return kept_together([*self._begin, *rows_of(image), *self._end], one_batch=False)

    @property
    def max_pixels(self) -> int:
        return self.options.image_size**2

    @property
    def max_patches(self) -> int:
        return self.options.sides[0] ** 2

    def memory_bytes(self, slice_rows: int) -> int:
        """Return the memory of the largest block: its input, output, and intermediates kept whole."""
        o, most = self.options, self.options.image_size**2 * self.options.channels * 2
        for stage, outer in zip(o.stages, o.sides, strict=False):
            side = outer
            for block in stage.blocks:
                places, made = side**2, results(side, block.step) ** 2
                inner = block.inner_size or block.query_size
                whole = 2 * places * inner if block.kind == "inverted" and block.kernel else 0
                read = block.in_size * (block.kernel**2 if block.kind == "edge" else 3)
                part = min(slice_rows, places) * (read + 3 * inner)
                most = max(most, places * block.in_size * 2 + made * block.out_size * 2 + whole + part)
                side = results(side, block.step)
        return 4 * most


def _read_stages(file: GGUFFile, eps: float) -> tuple[StageOptions, ...]:
    """Read the stages, which files describe only by their tensors. Raises `ModelError` for invalid ones."""
    found = sorted({(int(match[1]), int(match[2])) for match in map(_BLOCK.match, file.tensors) if match})
    counts: list[int] = []
    for stage, block in found:
        if block == 0 and stage == len(counts):
            counts.append(0)
        if stage != len(counts) - 1 or block != counts[-1]:
            raise ModelError(f"{file.path}: block 'v.blk.{stage}.{block}' does not follow another")
        counts[-1] += 1
    if len(counts) < _JOINED or sum(counts) > _MAX_BLOCKS:
        raise ModelError(f"{file.path}: no tower has {len(counts)} stages and {sum(counts)} blocks")
    stages, size = [], table_rows(file, "v.conv_stem.conv.weight")
    for stage, count in enumerate(counts):
        read: list[BlockOptions] = []
        for block in range(count):
            prefix = f"v.blk.{stage}.{block}"
            scale = file.tensors.get(f"{prefix}.layer_scale.gamma")
            each = _read_block(file, prefix, size, eps, 1 if block else _STEP)
            read.append(replace(each, flat_scale=scale is not None and len(scale.shape) == 1))
            size = read[-1].out_size
        stages.append(StageOptions(blocks=tuple(read)))
    return tuple(stages)


def _read_block(file: GGUFFile, prefix: str, size: int, eps: float, step: int) -> BlockOptions:
    """Read a block from the tensors named `prefix`, for a grid of `size` channels."""

    def rows(name: str) -> int:
        return table_rows(file, f"{prefix}.{name}.weight")

    def kernel(name: str) -> int:
        tensor = file.tensors.get(f"{prefix}.{name}.weight")
        side = tensor.shape[-1] if tensor is not None and len(tensor.shape) > 1 else 0
        if side > _LARGEST_KERNEL or (tensor is not None and not side % 2):
            raise ModelError(
                f"{file.path}: '{prefix}.{name}.weight' has a kernel of {side}, which no model has"
            )
        return side

    if f"{prefix}.conv_exp.weight" in file.tensors:
        return BlockOptions(
            kind="edge", in_size=size, out_size=rows("conv_pwl"), norm_eps=eps, step=step,
            inner_size=rows("conv_exp"), kernel=kernel("conv_exp"),
        )  # fmt: skip
    if f"{prefix}.pw_exp.conv.weight" in file.tensors:
        first, middle = kernel("dw_start.conv"), kernel("dw_mid.conv")
        if step > 1 and not first and not middle:
            raise ModelError(f"{file.path}: block '{prefix}' begins a stage, but has no convolution")
        return BlockOptions(
            kind="inverted", in_size=size, out_size=rows("pw_proj.conv"), norm_eps=eps, step=step,
            inner_size=rows("pw_exp.conv"), first_kernel=first, kernel=middle,
        )  # fmt: skip
    head_dim, queries, near = rows("attn.key.proj"), rows("attn.query.proj"), kernel("attn.key.down_conv")
    if step > 1 or not head_dim or queries % head_dim or near != kernel("attn.value.down_conv"):
        raise ModelError(f"{file.path}: the attention of block '{prefix}' has sizes that no model has")
    return BlockOptions(
        kind="attention", in_size=size, out_size=rows("attn.output.proj"), norm_eps=eps,
        heads=queries // head_dim, head_dim=head_dim, kernel=near, key_step=_STEP if near else 1,
    )  # fmt: skip
