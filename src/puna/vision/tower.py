"""What the engine sees of a vision tower."""

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
from puna.vision.layers.layers import Patches
from puna.vision.options import VisionOptions
from puna.vision.pixels import Pixels, normalised, patches

if TYPE_CHECKING:
    from puna.gguf import GGUFFile
    from puna.tokenizer import Tokenizer

_FLOAT_BYTES = 4
#: Of the patches of an image: they themselves, queries, keys, values, the results of a layer and of its half.
_ROWS_ALIVE = 6


@dataclass(frozen=True)
class Prepared:
    """An image as a tower reads it: uint8 [tiles, height, width, 3], and how it is laid out.

    `rows` of what the tower makes of it are read by the text model, in a grid or tiles of one.
    """

    pixels: Pixels
    rows: int
    grid: tuple[int, int] = (0, 0)  # rows and columns: of what is read, or of tiles
    overview: Pixels | None = None  # uint8 [height, width, 3]: the whole, where its size is not that of tiles
    order: NDArray[np.int64] | None = None  # which of what the tower makes is read, unless all as it comes

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.pixels, self.overview, self.order) if each is not None)


class VisionTower(Module):
    """What makes of an image the rows that stand in a text. One subclass per architecture.

    It reads one image at a time. `prepare` and `place` may be called from any thread.
    """

    options: VisionOptions
    #: What its feed-forward networks may compute, as files say it: "gelu", "silu" or "quick gelu".
    activations: ClassVar[tuple[str, ...]] = ("gelu",)
    #: Keys that its files have, and from which nothing follows; see `settings.py`.
    without_effect: ClassVar[tuple[str, ...]] = ()

    @classmethod
    @abstractmethod
    def read_options(cls, file: GGUFFile, text_size: int) -> VisionOptions:
        """The tower's options from the metadata of its file. Raises `ModelError` when they make no sense.

        What it makes of images has `text_size` numbers a row.
        """

    def loaded(self) -> None:
        self.keys = PatchKeys(self.ops, self.options.heads, self.options.head_dim)

    def use(self, tokenizer: Tokenizer) -> None:
        """Find the tokens that stand around images. Raises `ModelError` for one the model does not have."""

    @abstractmethod
    def prepare(self, picture: Picture) -> Prepared:
        """What of a picture is read, and as how many rows. It knows the tower's options, and no weights."""

    @abstractmethod
    def encode(self, prepared: Prepared, slice_rows: int) -> Slices[Array]:
        """float32 [rows, text_size] of an image, `slice_rows` of its patches in each slice."""

    @abstractmethod
    def place(self, image: Image) -> list[Input]:
        """The inputs an image becomes: its rows, and what stands around and between them."""

    @property
    def largest_group(self) -> int:
        """Inputs of an image that have to share a batch, at most."""
        return 1

    @property
    def max_patches(self) -> int:
        """Patches of the largest image."""
        return self.options.patches

    @property
    def max_pixels(self) -> int:
        """Pixels that `prepare` makes of the largest picture, of all tiles; more where sides are rounded."""
        return self.max_patches * self.options.patch_size**2

    def memory_bytes(self, slice_rows: int) -> int:
        """What reading the largest image takes beside the weights, as far as it is alive at once."""
        o = self.options
        row = max(layer.feed_forward_size for layer in o.layers) * 3 + 3 * o.patch_size**2
        alive = self.max_patches * o.hidden_size * _ROWS_ALIVE + min(slice_rows, self.max_patches) * row
        return _FLOAT_BYTES * alive

    # --- what subclasses are made of -----------------------------------------------------------------

    def patch_rows(self, pixels: Pixels, merge: int = 1) -> Iterator[Array]:
        """The normalised patches of each of the tiles: float32 [patches, 3 * size * size]."""
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
        """What layers are told: the sizes of the groups of patches that see each other, for each layer."""
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
    """An input for each of the rows [begin, end) of an image; `more` is said of the first of them.

    Each row is told from those of other images, and from the others of its own.
    """
    end = image.rows if end is None else end
    inputs = [
        Input(0, row_hash(image.digest, row), ImagePart(image, row, row + 1)) for row in range(begin, end)
    ]
    if more and inputs:
        inputs[0] = replace(inputs[0], **more)
    return inputs


def row_hash(digest: int, row: int) -> int:
    """64 bits that are not 0, of a row of an image."""
    return (digest + row * 0x9E3779B97F4A7C15) % (1 << 64) or 1


def kept_together(inputs: list[Input], *, one_batch: bool) -> list[Input]:
    """`inputs`, the first saying that the others belong to it, and whether they need one batch."""
    others = len(inputs) - 1
    same_batch = others if one_batch else inputs[0].same_batch
    inputs[0] = replace(inputs[0], same_batch=same_batch, together=others)
    return inputs


def marker(tokenizer: Tokenizer, spelling: str) -> int:
    """Return the token spelt `spelling`, whatever its type. Raises `ModelError` when there is none."""
    id = tokenizer.id_of(spelling)
    if id is None:
        raise ModelError(f"the vocabulary has no token {spelling}, which stands around images")
    return id


def text(tokenizer: Tokenizer, spelling: str) -> list[Input]:
    """Return the inputs of a text that belongs to an image: one if the vocabulary has a token spelt so."""
    if (id := tokenizer.id_of(spelling)) is not None:
        return [Input(id)]
    return [Input(token) for token in tokenizer.encode(spelling, add_special=False)]


def square_root(count: int) -> int:
    """The side of a square of that many. Raises `ModelError` when it is none."""
    if (side := math.isqrt(count)) ** 2 != count:
        raise ModelError(f"an image becomes {count} tokens, which is no square")
    return side
