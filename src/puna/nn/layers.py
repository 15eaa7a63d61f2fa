"""The leaves: modules that are one tensor of the file and one operation."""

from __future__ import annotations

from typing import Any, Self

import torch

from puna import ops
from puna.nn.module import WeightSource
from puna.ops import Weight


class Linear:
    """y = x W^T + b, W being [out, in] as stored."""

    def __init__(self, weight: Weight, bias: torch.Tensor | None = None) -> None:
        self.weight = weight
        self.bias = bias

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        weight = source.matrix(f"{name}.weight", shape)
        if weight is None:
            return None
        weight.pack()
        return cls(weight, source.vector(f"{name}.bias", shape[0]))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, in] to [rows, out]."""
        return ops.linear(x, self.weight, self.bias)


def linear_many(x: torch.Tensor, *linears: Linear) -> list[torch.Tensor]:
    """Several linears of the same input in one call, which reads and quantises it once."""
    return ops.linear_many(x, [linear.weight for linear in linears], [linear.bias for linear in linears])


class Embedding:
    """A row of the [vocab, hidden] table per token, dequantised."""

    def __init__(self, weight: Weight) -> None:
        self.weight = weight

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        weight = source.matrix(f"{name}.weight", shape)
        return None if weight is None else cls(weight)

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """int32 [rows] to float32 [rows, hidden]."""
        return ops.embedding(tokens, self.weight)


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * w (Zhang and Sennrich, 2019); eps is `options.norm_eps`."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    @classmethod
    def from_source(
        cls, source: WeightSource, name: str, shape: tuple[int, ...], options: Any
    ) -> Self | None:
        weight = source.vector(f"{name}.weight", shape[0])
        return None if weight is None else cls(weight, options.norm_eps)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, hidden] to the same."""
        return ops.rms_norm(x, self.weight, self.eps)

    def after_adding(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(x + residual, the norm of that): the step between the two halves of a layer."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps)
