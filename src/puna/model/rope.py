"""What a file says of a model's rotary position embedding."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from puna.errors import ModelError, UnsupportedModelError, shown
from puna.gguf.metadata import first_of, invalid, missing, number, positive, required, scalar
from puna.ops import Rope, Yarn

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from puna.gguf import GGUFFile

#: Keys that say how many pairs rotate by each axis, one of which files have.
SECTIONS: Final = ("rope.dimension_sections", "rope.mrope_section", "mrope_sections")


@dataclass(frozen=True)
class RopeOptions:
    """The metadata `rope.*`.

    Tensors of the file may have factors of its own on top: `rope_freqs`, or `rope_factors_short` and, for
    contexts longer than `original_context`, `rope_factors_long` (LongRoPE: Ding et al., arXiv:2402.13753).
    """

    dims: int  # of each head, the first ones
    base: float
    neox: bool = False  # pairs are (j, j + dims / 2), else neighbours
    linear_factor: float = 1.0
    yarn: Yarn | None = None
    magnitude: float = 1.0  # of cosines and sines; that of `yarn` comes on top
    original_context: int = 0  # what the model was trained with before it was extended
    factored: bool = True  # whether the factors in the file, if there are any, are for it
    sections: tuple[int, ...] = ()  # pairs that go by each axis of a place, where these are several
    interleaved: bool = False  # axes take turns; else their pairs follow each other

    @property
    def pairs(self) -> int:
        return self.dims // 2

    @classmethod
    def read(cls, file: GGUFFile, head_dim: int, *, base: float, neox: bool) -> Self:
        """From the metadata of `file`, where `head_dim` dims and `base` stand for keys that are absent.

        Raises `ModelError` for values that make no sense, `UnsupportedModelError` for unknown scalings.
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
        dims = scalar(file, "rope.dimension_count", head_dim)
        if not 0 < dims <= head_dim or dims % 2:
            raise ModelError(
                f"{file.path}: '{file.architecture}.rope.dimension_count' should be even and at most the "
                f"{head_dim} numbers of a head, but is {dims}"
            )
        return cls(
            dims=dims,
            base=_base(file, base),
            neox=neox,
            linear_factor=linear_factor,
            yarn=yarn,
            magnitude=magnitude,
            original_context=_original_context(file),
        )

    def with_magnitude(self, magnitude: float) -> Self:
        """With cosines and sines multiplied by just this, whatever YaRN would make of them."""
        assert self.yarn is not None
        factor = self.yarn.attention_factor * magnitude / (self.yarn.magnitude or 1.0)
        return dataclasses.replace(
            self, magnitude=1.0, yarn=dataclasses.replace(self.yarn, attention_factor=factor)
        )

    def build(self, factors: NDArray[Any] | None = None) -> Rope:
        """The rotation itself."""
        return Rope.build(
            self.dims,
            self.base,
            neox=self.neox,
            factors=factors,
            linear_factor=self.linear_factor,
            yarn=self.yarn,
            magnitude=self.magnitude,
            sections=self.sections or None,
            interleaved=self.interleaved,
        )


def read_sections(file: GGUFFile, pairs: int, shares: Sequence[int] = ()) -> tuple[int, ...]:
    """How many of a head's `pairs` rotate by time, height and width; by `shares` if the file does not say.

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


def _base(file: GGUFFile, default: float) -> float:
    base = positive(file, "rope.freq_base", default)
    if base <= 1:
        raise invalid(file, "rope.freq_base", f"should be above 1, but is {base}")
    return base


def read_yarn(file: GGUFFile) -> Yarn:
    """The settings of YaRN.

    Some of the keys have other names in files of llama.cpp's converter than in those of Ollama's.
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
    """What YaRN multiplies cosines and sines by, if the file says it; else it follows from the factor."""
    if number(file, "rope.scaling.yarn_log_multiplier", 0.0):
        return 1.0
    scale, of_all = number(file, "rope.scaling.mscale", 0.0), number(file, "rope.scaling.mscale_all_dim", 0.0)
    if not (scale and of_all):
        return None
    grown = 0.1 * math.log(positive(file, "rope.scaling.factor", 1.0))
    return (1 + scale * grown) / (1 + of_all * grown)


def _original_context(file: GGUFFile) -> int:
    return required(file, "rope.scaling.original_context_length", required(file, "context_length", 131072))
