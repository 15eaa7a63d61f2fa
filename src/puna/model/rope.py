"""Options of a rotary position embedding, read from metadata."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from puna.errors import UnsupportedModelError, shown
from puna.gguf.metadata import first_of, invalid, missing, number, positive, required, scalar
from puna.ops import Rope, Sections, Yarn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.gguf import GGUFFile

#: Keys that state how many pairs rotate by each axis; a file has one of them.
SECTIONS: Final = ("rope.dimension_sections", "rope.mrope_section", "mrope_sections")


@dataclass(frozen=True)
class RopeOptions:
    """Options from the metadata `rope.*`.

    The file may also have frequency factors as tensors: `rope_freqs`, or `rope_factors_short` and, for
    contexts longer than `original_context`, `rope_factors_long` (LongRoPE: Ding et al., arXiv:2402.13753).
    """

    dims: int  # first dimensions of each head, which are rotated
    base: float
    neox: bool = False  # pairs are (j, j + dims / 2), otherwise neighbours
    linear_factor: float = 1.0
    yarn: Yarn | None = None
    magnitude: float = 1.0  # of cosines and sines, besides YaRN's
    original_context: int = 0  # context of the training before an extension
    factored: bool = True  # whether the file's factors apply
    sections: Sections | None = None  # for positions with several axes

    @property
    def pairs(self) -> int:
        return self.dims // 2

    @classmethod
    def read(cls, file: GGUFFile, head_dim: int, *, base: float, neox: bool) -> Self:
        """Read from the metadata of `file`; `head_dim` and `base` are defaults.

        Raises `ModelError` for invalid values, `UnsupportedModelError` for unknown scalings.
        """
        scaling, linear_factor, yarn, magnitude = file.get("rope.scaling.type", "linear"), 1.0, None, 1.0
        if scaling == "linear":
            linear_factor = positive(file, "rope.scaling.factor", 1.0)
        elif scaling == "yarn":
            yarn = read_yarn(file)
        elif scaling not in ("none", "longrope"):
            raise UnsupportedModelError(
                f"{file.path}: rope scaling {shown(scaling)} is not supported for {file.architecture}"
            )
        if yarn is None:
            magnitude = positive(file, "rope.scaling.attn_factor", 1.0)
        return cls(
            dims=_dimensions(file, "rope.dimension_count", head_dim, head_dim),
            base=_base(file, "rope.freq_base", base),
            neox=neox,
            linear_factor=linear_factor,
            yarn=yarn,
            magnitude=magnitude,
            original_context=_original_context(file),
        )

    def within_window(self, file: GGUFFile, head_dim: int, *, base: float) -> Self:
        """Return the rotation of layers with a window, which is not scaled for long contexts.

        The file may state its base (default `base`) and its number of dimensions. Raises `ModelError`.
        """
        # llama.cpp's and Ollama's names.
        base_key = first_of(file, "rope.freq_base_swa", "rope.swa.freq_base")
        dims_key = first_of(file, "rope.dimension_count_swa", "rope.swa.dimension_count")
        dims = _dimensions(file, dims_key, head_dim, self.dims)
        return type(self)(dims, _base(file, base_key, base), neox=self.neox, factored=False)

    def with_magnitude(self, magnitude: float) -> Self:
        """Return these options with exactly this magnitude, instead of YaRN's own."""
        assert self.yarn is not None
        factor = self.yarn.attention_factor * magnitude / (self.yarn.magnitude or 1.0)
        return dataclasses.replace(
            self, magnitude=1.0, yarn=dataclasses.replace(self.yarn, attention_factor=factor)
        )

    def build(self, factors: NDArray[Any] | None = None) -> Rope:
        """Build the rotation."""
        return Rope.build(
            self.dims,
            self.base,
            neox=self.neox,
            factors=factors,
            linear_factor=self.linear_factor,
            yarn=self.yarn,
            magnitude=self.magnitude,
            sections=self.sections,
        )


def read_sections(file: GGUFFile, pairs: int, shares: Sequence[int] = ()) -> tuple[int, ...]:
    """Return how many of a head's `pairs` rotate by time, height and width, by default `shares`.

    Raises `ModelError`.
    """
    key = first_of(file, *SECTIONS)
    values: Any = file.get(key)
    if values is None and shares:
        values = [pairs * share // sum(shares) for share in shares]
    if values is None:
        raise missing(file, key)
    sections = () if isinstance(values, str | int | float) else tuple(values[:5])
    if (
        len(sections) not in (3, 4)
        or not all(type(size) is int and size >= 0 for size in sections)
        or sum(sections) != pairs
        or any(sections[3:])
    ):
        raise invalid(
            file, key, f"should divide the {pairs} pairs of a head in three, but is {shown(values)}"
        )
    return sections[:3]


def _dimensions(file: GGUFFile, key: str, head_dim: int, default: int) -> int:
    dims = scalar(file, key, default)
    if not 0 < dims <= head_dim or dims % 2:
        raise invalid(
            file, key, f"should be even and at most the {head_dim} numbers of a head, but is {dims}"
        )
    return dims


def _base(file: GGUFFile, key: str, default: float) -> float:
    base = positive(file, key, default)
    if base <= 1:
        raise invalid(file, key, f"should be above 1, but is {base}")
    return base


def read_yarn(file: GGUFFile) -> Yarn:
    """Read the settings of YaRN.

    llama.cpp's and Ollama's converters name some of the keys differently.
    """
    fast = first_of(file, "rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast")
    slow = first_of(file, "rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow")
    extrapolation = first_of(file, "rope.scaling.yarn_ext_factor", "rope.scaling.extrapolation_factor")
    return Yarn(
        factor=positive(file, "rope.scaling.factor", 1.0),
        original_context=_original_context(file),
        attention_factor=number(file, "rope.scaling.attn_factor", 1.0),
        beta_fast=positive(file, fast, 32.0),
        beta_slow=positive(file, slow, 1.0),
        extrapolation=number(file, extrapolation, 1.0),
    )


def read_magnitude(file: GGUFFile) -> float | None:
    """Return YaRN's factor on cosines and sines if the file states it; None if it follows from the scale."""
    if number(file, "rope.scaling.yarn_log_multiplier", 0.0):
        return 1.0
    scale, of_all = number(file, "rope.scaling.mscale", 0.0), number(file, "rope.scaling.mscale_all_dim", 0.0)
    if not (scale and of_all):
        return None
    grown = 0.1 * math.log(positive(file, "rope.scaling.factor", 1.0))
    return (1 + scale * grown) / (1 + of_all * grown)


def _original_context(file: GGUFFile) -> int:
    return required(file, "rope.scaling.original_context_length", required(file, "context_length", 131072))
