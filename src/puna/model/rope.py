"""What a file says of a model's rotary position embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from puna.errors import UnsupportedModelError
from puna.model.metadata import number, scalar
from puna.ops import Rope, Yarn

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
        factor = number(file, "rope.scaling.factor", 1.0)
        original = scalar(file, "rope.scaling.original_context_length", 131072)
        if scaling == "linear":
            linear_factor = factor
        elif scaling == "yarn":
            yarn = Yarn(factor, original, number(file, "rope.scaling.attn_factor", 1.0))
        elif scaling != "none":
            raise UnsupportedModelError(
                f"{file.path}: rope scaling '{scaling}' is not supported for {file.architecture}"
            )
        return cls(
            dims=scalar(file, "rope.dimension_count", head_dim),
            base=number(file, "rope.freq_base", base),
            linear_factor=linear_factor,
            yarn=yarn,
        )

    def build(self, *, neox: bool = False, factors: torch.Tensor | None = None) -> Rope:
        """The rotation itself."""
        return Rope.build(
            self.dims,
            self.base,
            neox=neox,
            factors=factors,
            linear_factor=self.linear_factor,
            yarn=self.yarn,
        )
