"""The vision tower of LLaVA 1.5: CLIP (Radford et al., arXiv:2103.00020) without its last layer, two linears.

Liu et al., arXiv:2310.03744. A picture is padded to a square; its patches are what stands in the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from puna.batch import Image, Input
from puna.errors import UnsupportedModelError
from puna.images import Picture
from puna.images.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, as_picture, padded, stretched
from puna.model.metadata import flag, invalid, table_rows
from puna.model.vision.options import VisionOptions, with_clip_layers
from puna.model.vision.tower import Prepared, VisionTower, kept_together, rows_of
from puna.nn.layers import LayerNorm, Linear, Unused
from puna.nn.module import blocks, weight
from puna.nn.vision.attention import Slices
from puna.nn.vision.clip import clip_layer_kind
from puna.nn.vision.layers import LayerNormLayer, PatchEmbedding, Table, through
from puna.ops import Array

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


#: Pixels of the side of a picture beyond which it is made smaller before it is padded.
_LARGEST_SIDE: Final = 4096


@dataclass(frozen=True, kw_only=True)
class LlavaVisionOptions(VisionOptions):
    projected_size: int  # between the two linears
    used_layers: int  # whose last one's patches are projected

    @property
    def positions(self) -> int:
        """Those of the patches, and of what stands for all of them."""
        return self.patches + 1


class LlavaVision(VisionTower):
    options: LlavaVisionOptions
    activations = ("gelu", "quick gelu")
    embedding: PatchEmbedding = weight("v.patch_embd", "hidden_size", "channels", "patch_size", "patch_size")
    whole: Array = weight("v.class_embd", "hidden_size")
    positions: Table = weight("v.position_embd", "positions", "hidden_size")
    first_norm: LayerNorm = weight("v.pre_ln", "hidden_size")
    last_norm: Unused | None = weight("v.post_ln", "hidden_size", optional=True)
    last_bias: Array | None = weight("v.post_ln.bias", "hidden_size", optional=True)
    layers: Sequence[LayerNormLayer] = blocks("v.blk", choose=clip_layer_kind)
    up: Linear = weight("mm.0", "projected_size", "hidden_size")
    down: Linear = weight("mm.2", "text_size", "projected_size")

    @classmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> LlavaVisionOptions:
        if "mm.4.weight" in file.tensors:
            raise UnsupportedModelError(
                f"{file.path}: tensor 'mm.4.weight' belongs to Yi-VL, which is not supported"
            )
        options = VisionOptions.read(
            file, text_size, image_size=336, norm_eps=1e-5, mean=CLIP_MEAN, std=CLIP_STD,
            feed_forward=("v.blk.0.ffn_up.weight",),
        )  # fmt: skip
        return LlavaVisionOptions(
            **with_clip_layers(file, options),
            projected_size=table_rows(file, "mm.0.weight"),
            used_layers=_used_layers(file, len(options.layers)),
        )

    def prepare(self, picture: Picture) -> Prepared:
        o = self.options
        if (longest := max(picture.size)) > _LARGEST_SIDE:  # a line of pixels would become a square of them
            width, height = (max(size * _LARGEST_SIDE // longest, 1) for size in picture.size)
            picture = as_picture(stretched(picture, width, height, BICUBIC))
        width, height = picture.size
        side = max(width, height)
        square = padded(
            np.asarray(picture), side, side, left=(side - width) // 2, top=(side - height) // 2,
            colour=tuple(int(255 * mean) for mean in o.mean),
        )  # fmt: skip
        pixels = stretched(as_picture(square), o.image_size, o.image_size, BICUBIC)
        return Prepared(pixels[None], o.patches)

    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        (patches,) = self.patch_rows(prepared.pixels)
        return (yield from self.read(patches, slice_rows))

    def read(self, patches: Array, slice_rows: int) -> Slices[Array]:
        """Yield between steps; return the rows of one square of patches: [patches, text_size]."""
        o = self.options
        whole = self.whole.reshape(1, o.hidden_size)
        hidden = self.ops.concatenate([whole, self.embedding(patches)]) + self.positions.values
        hidden = self.first_norm(hidden)
        yield
        reading = self.reading([[o.positions]] * len(self.layers), slice_rows)
        hidden = yield from through(self.layers[: o.used_layers], hidden, reading)
        return self.down(self.ops.gelu(self.up(hidden[1:])))

    def place(self, image: Image) -> list[Input]:
        return kept_together(rows_of(image), one_batch=False)

    @property
    def most_patches(self) -> int:
        return self.options.positions


def _used_layers(file: GGUFFile, count: int) -> int:
    """Return how many of the file's layers run: all but CLIP's last one, which most files lack.

    Newer files name it in `feature_layer`. Before that, llama.cpp's converter left the last layer out and
    called what it wrote a LLaVA projector. For other files it is a guess: a whole CLIP has an even number of
    layers.
    """
    key = "vision.feature_layer"
    listed: Any = file.get(key)
    if listed is not None:
        layers = [listed] if isinstance(listed, int) else listed
        if isinstance(layers, str | float) or not all(type(layer) is int for layer in layers[: count + 1]):
            raise invalid(file, key, "should name a layer")
        if len(layers) != 1:
            raise UnsupportedModelError(
                f"{file.path}: '{file.architecture}.{key}' names {len(layers)} layers; towers whose patches "
                "are taken from several are not supported"
            )
        if not 0 < layers[0] <= count:
            raise invalid(file, key, f"is {layers[0]}, but there are {count} layers")
        return int(layers[0])
    if flag(file, "has_llava_projector", False):
        return count
    return count - 1 if count % 2 == 0 else count
