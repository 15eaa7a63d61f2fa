"""Operations whose weights stay on the host: the processor computes them between the device's kernels.

A device waits meanwhile. What is copied there and back is a few rows, where the weights would be gigabytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from puna.ops.backend import Backend
from puna.ops.experts import ExpertNetworks, ExpertWeights
from puna.ops.weight import Weight

#: A computation on the host: from arrays as operations take them to float32 numbers.
Compute = Callable[..., NDArray[Any]]


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


class InterruptibleRecording(Protocol):
    """A recording of a device's work, which cannot contain what the host computes."""

    def interrupt(self, part: HostPart) -> None:
        """Note that `part` runs after what was recorded so far, and before what follows."""


class _Current(threading.local):
    recording: InterruptibleRecording | None = None


_current = _Current()


@contextmanager
def interrupting(recording: InterruptibleRecording) -> Iterator[None]:
    """Give parts that this thread meets to `recording`, instead of running them."""
    _current.recording = recording
    try:
        yield
    finally:
        _current.recording = None


class HostPart:
    """A computation on the host, and the memory it reads and writes each time it runs."""

    def __init__(self, compute: Compute, inputs: Sequence[Tensor], shape: tuple[int, ...]) -> None:
        """`compute` takes the contents of `inputs`, of four bytes each, and returns float32 of `shape`."""
        self._compute = compute
        flat = [each.reshape(-1).view(torch.int32) for each in inputs]
        # One copy to the host waits for the device once.
        self._joined = flat[0] if len(flat) == 1 else torch.cat(flat)
        self._forms = [(each.shape, each.dtype) for each in inputs]
        self._shape = shape

    def take_memory(self) -> None:
        """Take the memory for what is copied, which must not happen while a device's work is recorded."""
        device = self._joined.device
        self._pinned = device.type == "cuda"
        self._there = torch.empty_like(self._joined, device="cpu", pin_memory=self._pinned)
        self._back = torch.empty(self._shape, pin_memory=self._pinned)
        self.result = torch.empty(self._shape, device=device)
        parts = self._there.split([shape.numel() for shape, _ in self._forms])
        self._given = [
            part.view(dtype).view(shape).numpy()
            for part, (shape, dtype) in zip(parts, self._forms, strict=True)
        ]

    def run(self) -> None:
        """Compute `result` from what the inputs hold now."""
        self._there.copy_(self._joined, non_blocking=True)
        if self._pinned:
            torch.cuda.current_stream(self._joined.device).synchronize()
        np.copyto(self._back.numpy(), self._compute(*self._given).reshape(self._shape))
        self.result.copy_(self._back, non_blocking=True)

    def spoil(self) -> None:
        """Overwrite everything it computes with nonsense."""
        self._there.fill_(-1)
        self._back.fill_(torch.nan)
        self.result.fill_(torch.nan)


def on_host(compute: Compute, inputs: Sequence[Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return what `compute` makes of tensors of a device: float32 of `shape`, on the same device."""
    part = HostPart(compute, inputs, shape)
    if (recording := _current.recording) is not None:
        recording.interrupt(part)
    else:
        part.take_memory()
        part.run()
    return part.result
