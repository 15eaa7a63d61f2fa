"""Interface of vision towers for the engine, and how an image's rows are placed in a prompt."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from puna.batch import Image, ImagePart, Input
from puna.errors import ModelError
from puna.nn.module import Module
from puna.ops import Array, Rope
from puna.vision.decoding import Picture
from puna.vision.layers.attention import Groups, PatchKeys, Slices
from puna.vision.layers.layers import Patches, VisionLayer, kept_as
from puna.vision.options import VisionOptions
from puna.vision.pixels import Pixels, normalised, patches

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

_FLOAT_BYTES = 4
#: Copies per patch alive at once: the patches, queries, keys, values, results of a layer and of its half.
_ROWS_ALIVE = 6


@dataclass(frozen=True)
class Prepared:
    """Image as a tower reads it: uint8 [tiles, height, width, 3], and its layout.

    The tower turns it into `rows` for the text model, in a grid or in a grid of tiles.
    """

    pixels: Pixels
    rows: int
    grid: tuple[int, int] = (0, 0)  # rows and columns of the result, or of tiles
    overview: Pixels | None = (
        None  # uint8 [height, width, 3]: the whole image, if its size differs from the tiles'
    )
    order: NDArray[np.int64] | None = None  # indices of the tower's outputs to use, in order; None for all

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.pixels, self.overview, self.order) if each is not None)


class VisionTower(Module):
    """Vision tower: turns an image into rows for the text model. One subclass per architecture.

    It reads one image at a time. `prepare` and `place` may be called from any thread.
    """

    options: VisionOptions
    #: Supported activations of its feed-forward networks: "gelu", "silu" or "quick gelu".
    activations: ClassVar[tuple[str, ...]] = ("gelu",)
    #: Keys in its files that have no effect; see `registry.py`.
    without_effect: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> VisionOptions:
        """Read the tower's options from its file's metadata. Raises `ModelError` for invalid ones.

        Each row it makes of an image has `text_size` values.
        """

    def loaded(self) -> None:
        layers = [layer for layer in getattr(self, "layers", ()) if isinstance(layer, VisionLayer)]
        self.keys = PatchKeys(self.ops, self.options.heads, self.options.head_dim, kind=kept_as(layers))

    def use(self, tokenizer: Tokenizer) -> None:
        """Look up the tokens around images. Raises `ModelError` for one the vocabulary lacks."""

    @abstractmethod
    def prepare(self, picture: Picture) -> Prepared:
        """Return the part of a picture to read and its number of rows. Uses the options but no weights."""

    @abstractmethod
    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        """Return float32 [rows, text_size] of an image, reading `slice_rows` patches per slice."""

    @abstractmethod
    def place(self, image: Image) -> list[Input]:
        """Return the prompt inputs of an image: its rows and the tokens around and between them."""

    @property
    def largest_group(self) -> int:
        """Upper bound of an image's inputs that must share a batch."""
        return 1

    @property
    def max_patches(self) -> int:
        """Number of patches of the largest image."""
        return self.options.patches

    @property
    def max_pixels(self) -> int:
        """Pixels that `prepare` makes of the largest picture in all tiles; more where sides are rounded."""
        return self.max_patches * self.options.patch_size**2

    def memory_bytes(self, slice_rows: int) -> int:
        """Return the memory that reading the largest image takes at once, besides the weights."""
        o = self.options
        row = max(layer.feed_forward_size for layer in o.layers) * 3 + 3 * o.patch_size**2
        alive = self.max_patches * o.hidden_size * _ROWS_ALIVE + min(slice_rows, self.max_patches) * row
        return _FLOAT_BYTES * alive

    # --- for subclasses -------------------------------------------------------------------------------

    def patch_rows(self, pixels: Pixels, merge: int = 1) -> Iterator[Array]:
        """Yield the normalised patches of each tile: float32 [patches, 3 * size * size]."""
        o = self.options
        for tile in pixels:
            yield self.ops.array(normalised(patches(tile, o.patch_size, merge), o.mean, o.std))

    def reading(
        self,
        groups: Sequence[Sequence[int]],
        slice_rows: int,
        rope: Rope | None = None,
        places: NDArray[np.int32] | None = None,
    ) -> Patches:
        """Return the arguments of the layers, given the sizes of each layer's groups of patches."""
        built = {sizes: Groups.of(self.ops, sizes) for sizes in {tuple(sizes) for sizes in groups}}
        self.keys.reserve(sum(groups[0]))
        return Patches(
            self.keys,
            [built[tuple(sizes)] for sizes in groups],
            slice_rows,
            rope,
            None if places is None else self.ops.array(places),
        )


def rows_of(image: Image, *, begin: int = 0, end: int | None = None, **more: Any) -> list[Input]:
    """Return one input per row [begin, end) of an image; the first also gets the fields `more`.

    Hashes tell each row from the image's other rows and from other images.
    """
    end = image.rows if end is None else end
    inputs = [
        Input(0, row_hash(image.digest, row), ImagePart(image, row, row + 1)) for row in range(begin, end)
    ]
    if more and inputs:
        inputs[0] = replace(inputs[0], **more)
    return inputs


def row_hash(digest: int, row: int) -> int:
    """Return a nonzero 64-bit hash of a row of an image."""
    return (digest + row * 0x9E3779B97F4A7C15) % (1 << 64) or 1


def kept_together(inputs: list[Input], *, one_batch: bool) -> list[Input]:
    """Mark on the first of `inputs` that the others belong to it, and whether they need one batch."""
    others = len(inputs) - 1
    same_batch = others if one_batch else inputs[0].same_batch
    inputs[0] = replace(inputs[0], same_batch=same_batch, together=others)
    return inputs


def marker(tokenizer: Tokenizer, spelling: str, marked: str = "images") -> int:
    """Return the id of the token spelled `spelling`, whatever its type; it is beside what is `marked`.

    Raises `ModelError` if there is none.
    """
    id = tokenizer.id_of(spelling)
    if id is None:
        raise ModelError(f"the vocabulary has no token {spelling}, which marks {marked}")
    return id


def text(tokenizer: Tokenizer, spelling: str) -> list[Input]:
    """Return the inputs of a text beside an image: a single token if the vocabulary has it, else encoded."""
    if (id := tokenizer.id_of(spelling)) is not None:
        return [Input(id)]
    return [Input(token) for token in tokenizer.encode(spelling, add_special=False)]


def square_root(count: int) -> int:
    """Return the side of a square of `count` tokens. Raises `ModelError` if there is no such square."""
    if (side := math.isqrt(count)) ** 2 != count:
        raise ModelError(f"an image becomes {count} tokens, which is not a square")
    return side
