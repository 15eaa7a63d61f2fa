"""The ways of values between the host and a device: small ones get there without waiting for it."""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

#: Bytes of pinned memory: those of many steps, since it is waited for the device each time all are used.
_SIZE = 8 << 20
#: Values above this size get pinned memory of their own.
_LARGEST = 1 << 20
_ALIGNMENT = 16


class Staging:
    """Pinned memory whose parts are used in turn; any thread may send."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._pinned = torch.empty(_SIZE, dtype=torch.uint8, pin_memory=True)
        self._host: NDArray[np.uint8] = self._pinned.numpy()
        self._used = 0

    def send(self, values: NDArray[np.generic], target: Tensor) -> None:
        """Copy contiguous `values` to `target` of their size and type; the host may change them at once."""
        if values.nbytes > _LARGEST:
            target.copy_(torch.from_numpy(values).pin_memory(), non_blocking=True)
            return
        with self._lock:
            if self._used + values.nbytes > _SIZE:
                torch.cuda.synchronize(self._device)  # it may still read
                self._used = 0
            begin, end = self._used, self._used + values.nbytes
            self._host[begin:end] = values.reshape(-1).view(np.uint8)
            self._used = -(-end // _ALIGNMENT) * _ALIGNMENT
            target.copy_(self._pinned[begin:end].view(target.dtype).view(target.shape), non_blocking=True)


@cache
def _staging(device: torch.device) -> Staging:
    return Staging(device)


def send(values: NDArray[np.generic], target: Tensor) -> None:
    """Copy contiguous `values` to `target`, as `Staging.send` to a GPU."""
    if not values.size:
        return
    if target.device.type == "cuda":
        _staging(target.device).send(values, target)
    else:
        target.copy_(torch.from_numpy(values))


def sent(values: NDArray[np.generic], device: torch.device) -> Tensor:
    """Return contiguous `values` in new memory of the device."""
    target = torch.empty(values.shape, dtype=torch.from_numpy(values).dtype, device=device)
    send(values, target)
    return target


def received(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor's values on the host, once the device has computed them."""
    there = tensor
    if tensor.device.type != "cpu":
        there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        there.copy_(tensor, non_blocking=True)
        torch.cuda.current_stream(tensor.device).synchronize()
    values: NDArray[Any] = there.numpy()
    return values
