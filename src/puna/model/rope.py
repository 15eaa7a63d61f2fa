"""What a file says of a model's rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from puna.errors import ModelError, UnsupportedModelError
from puna.model.metadata import first_of, number, positive, scalar
from puna.ops import Array, Rope, Yarn

if TYPE_CHECKING:
    from puna.gguf import GGUFFile


@dataclass(frozen=True)
class RopeOptions:
    """The metadata `rope.*`; a tensor `rope_freqs` with factors of a model's own may come on top."""

    dims: int  # of each head, the first ones
    base: float
    linear_factor: float = 1.0
    yarn: Yarn | None = None

    @property
    def pairs(self) -> int:
        return self.dims // 2

    @classmethod
    def read(cls, file: GGUFFile, head_dim: int, *, base: float = 10000.0) -> Self:
        """From the metadata of `file`, where `head_dim` dims and `base` stand for keys that are absent.

        Raises `ModelError` for values that make no sense, `UnsupportedModelError` for unknown scalings.
        """
        scaling, linear_factor, yarn = file.get("rope.scaling.type", "linear"), 1.0, None
        if scaling == "linear":
            linear_factor = positive(file, "rope.scaling.factor", 1.0)
        elif scaling == "yarn":
            yarn = _read_yarn(file)
        elif scaling != "none":
            raise UnsupportedModelError(
                f"{file.path}: rope scaling '{scaling}' is not supported for {file.architecture}"
            )
        dims = scalar(file, "rope.dimension_count", head_dim)
        if not 0 < dims <= head_dim or dims % 2:
            raise ModelError(
                f"{file.path}: '{file.architecture}.rope.dimension_count' should be even and at most the "
                f"{head_dim} numbers of a head, but is {dims}"
            )
        return cls(
            dims=dims,
            base=positive(file, "rope.freq_base", base),
            linear_factor=linear_factor,
            yarn=yarn,
        )

    def build(self, *, neox: bool = False, factors: Array | None = None) -> Rope:
        """The rotation itself."""
        return Rope.build(
            self.dims,
            self.base,
            neox=neox,
            factors=factors,
            linear_factor=self.linear_factor,
            yarn=self.yarn,
        )


def _read_yarn(file: GGUFFile) -> Yarn:
    """Some of the keys have other names in files of llama.cpp's converter than in those of Ollama's."""
    fast = first_of(file, "rope.scaling.yarn_beta_fast", "rope.scaling.beta_fast")
    slow = first_of(file, "rope.scaling.yarn_beta_slow", "rope.scaling.beta_slow")
    extrapolation = first_of(file, "rope.scaling.yarn_ext_factor", "rope.scaling.extrapolation_factor")
    key = "rope.scaling.original_context_length"
    original = scalar(file, key, scalar(file, "context_length", 131072))
    if original < 1:
        raise ModelError(f"{file.path}: '{file.architecture}.{key}' should be positive, but is {original}")
    return Yarn(
        factor=positive(file, "rope.scaling.factor", 1.0),
        original_context=original,
        attention_factor=number(file, "rope.scaling.attn_factor", 1.0),
        beta_fast=positive(file, fast, 32.0),
        beta_slow=positive(file, slow, 1.0),
        extrapolation=number(file, extrapolation, 1.0),
    )
