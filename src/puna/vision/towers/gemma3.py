"""Vision tower of Gemma 3: SigLIP (Zhai et al., arXiv:2303.15343), 4096 patches pooled to 256 rows.

Gemma Team, arXiv:2503.19786. The rows of an image attend to each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.batch import Image, Input
from puna.errors import ModelError
from puna.gguf.metadata import first_of, required
from puna.nn.layers import LayerNorm, RMSNorm
from puna.nn.module import blocks, weight
from puna.ops import Array
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Slices
from puna.vision.layers.layers import LayerNormLayer, PatchEmbedding, Table, TransposedLinear, pooled, through
from puna.vision.options import VisionOptions
from puna.vision.pixels import BILINEAR, stretched
from puna.vision.tower import Prepared, VisionTower, kept_together, marker, rows_of, square_root, text

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Gemma3VisionOptions(VisionOptions):
    pool: int  # patches per row along a side

    @property
    def rows(self) -> int:
        return (self.side // self.pool) ** 2


class Gemma3Vision(VisionTower):
    options: Gemma3VisionOptions
    embedding: PatchEmbedding = weight(
        "v.patch_embedding|v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size"
    )
    positions: Table = weight("v.position_embedding|v.position_embd", "patches", "hidden_size")
    layers: Sequence[LayerNormLayer] = blocks("v.blk")
    norm: LayerNorm = weight("v.post_layernorm|v.post_ln", "hidden_size")
    row_norm: RMSNorm = weight("mm.mm_soft_emb_norm|mm.soft_emb_norm", "hidden_size")
    projection: TransposedLinear = weight(
        "mm.mm_input_projection|mm.input_projection", "hidden_size", "text_size"
    )

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> Gemma3VisionOptions:
        options = VisionOptions.read(file, text_size, image_size=896)
        if file.get("vision.projector.scale_factor") is not None:
            pool = required(file, "vision.projector.scale_factor")
        else:
            tokens = required(file, first_of(file, "mm_tokens_per_image", "mm.tokens_per_image"), 256)
            pool = options.side // square_root(tokens)
        if not 0 < pool <= options.side or options.side % pool:
            raise ModelError(
                f"{file.path}: {options.side} x {options.side} patches cannot be divided by {pool}"
            )
        return Gemma3VisionOptions(**vars(options), pool=pool)

    def use(self, tokenizer: Tokenizer) -> None:
        self._begin = [*text(tokenizer, "\n\n"), Input(marker(tokenizer, "<start_of_image>"))]
        self._end = [Input(marker(tokenizer, "<end_of_image>")), *text(tokenizer, "\n\n")]

    def prepare(self, picture: Picture) -> Prepared:
        side = self.options.image_size
        return Prepared(stretched(picture, side, side, BILINEAR)[None], self.options.rows)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        o = self.options
        (patches,) = self.patch_rows(prepared.pixels)
        hidden = self.embedding(patches) + self.positions.values
        yield
        reading = self.reading([[o.patches]] * len(self.layers), slice_rows)
        hidden = self.norm((yield from through(self.layers, hidden, reading)))
        rows = pooled(hidden.reshape(o.side, o.side, o.hidden_size), o.pool)
        return self.projection(self.row_norm(rows))

    def place(self, image: Image) -> list[Input]:
        rows = rows_of(image, span=image.rows)
        return kept_together([*self._begin, *rows, *self._end], one_batch=True)

    @property
    def largest_group(self) -> int:
        return self.options.rows + 16
