"""Operations whose weights stay on the host: the processor computes them between the device's kernels.

A device waits meanwhile. What is copied there and back is a few rows, where the weights would be gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from puna.ops.backend import Backend
from puna.ops.experts import ExpertNetworks, ExpertWeights
from puna.ops.weight import Weight

#: A computation on the host: from arrays as operations take them to float32 [rows, ...].
HostPart = Callable[..., NDArray[Any]]


class HostParts:
    """The operations of `host`, a backend of the processor, on tensors of another device."""

    def __init__(self, host: Backend) -> None:
        self._host = host

    def embedding(self, tokens: Tensor, weight: Weight) -> Tensor:
        def compute(rows: NDArray[Any]) -> NDArray[Any]:
            return self._read(self._host.embedding(self._host.array(rows), weight))

        return on_host(compute, [tokens], (len(tokens), weight.shape[1]))

    def linear_many(self, x: Tensor, weights: Sequence[Weight]) -> list[Tensor]:
        def compute(rows: NDArray[Any]) -> NDArray[Any]:
            results = self._host.linear_many(self._host.array(rows), weights)
            return np.concatenate([self._read(result).reshape(-1) for result in results])

        sizes = [len(x) * weight.shape[0] for weight in weights]
        parts = on_host(compute, [x], (sum(sizes),)).split(sizes)
        return [part.view(len(x), weight.shape[0]) for part, weight in zip(parts, weights, strict=True)]

    def linear_heads(self, x: Tensor, weights: Sequence[Weight]) -> Tensor:
        def compute(rows: NDArray[Any]) -> NDArray[Any]:
            return self._read(self._host.linear_heads(self._host.array(rows), weights))

        return on_host(compute, [x], (*x.shape[:2], weights[0].shape[0]))

    def experts(self, x: Tensor, chosen: Tensor, weights: Tensor, layer: ExpertNetworks) -> Tensor:
        def compute(*given: NDArray[Any]) -> NDArray[Any]:
            rows, numbers, shares = map(self._host.array, given)
            return self._read(self._host.experts(rows, numbers, shares, layer))

        return on_host(compute, [x, chosen, weights], (len(x), layer.down.shape[1]))

    def expert_linear(self, x: Tensor, chosen: Tensor, weights: ExpertWeights, bias: Any) -> Tensor:
        def compute(*given: NDArray[Any]) -> NDArray[Any]:
            rows, numbers = map(self._host.array, given)
            return self._read(self._host.expert_linear(rows, numbers, weights, bias))

        return on_host(compute, [x, chosen], (len(x), weights.shape[1]))

    def _read(self, result: Any) -> NDArray[Any]:
        return self._host.numpy(result)


def on_host(compute: HostPart, inputs: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return what `compute` makes of tensors of a device: float32 of `shape`, on the same device."""
    device = inputs[0].device
    if device.type == "cpu":
        return torch.from_numpy(compute(*(each.numpy() for each in inputs)).copy()).view(shape)
    there = copied_to_host(inputs)
    torch.cuda.current_stream(device).synchronize()
    back = torch.empty(shape, pin_memory=True)
    back.copy_(torch.from_numpy(compute(*(each.numpy() for each in there))))
    return back.to(device, non_blocking=True)


def copied_to_host(inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return copies in pinned memory, complete when the device's stream has come to here."""
    there = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in inputs]
    for target, each in zip(there, inputs, strict=True):
        target.copy_(each, non_blocking=True)
    return there
