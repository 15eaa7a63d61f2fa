"""Memory of a torch device that grows: at a fixed address where one can be reserved, or else by moving.

CUDA's virtual memory adds memory behind what there is. AMD's GPUs, and NVIDIA's in some virtual machines,
have torch's memory alone: rows are copied to a larger place, and recordings of the old one are not replayed.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Self

import torch
from torch import Tensor

from puna.ops.gpu import virtual_memory
from puna.ops.gpu.virtual_memory import AddressRange, device_bytes

#: Bytes of memory that a plane which moves takes at least, as much as CUDA's virtual memory does.
STEP = 2 << 20


class Plane(ABC):
    """Numbers [rows, *shape], zero at first, without memory before they are provided (see `Storage`)."""

    #: Times that the address has changed.
    moves = 0
    _values: Tensor | None = None

    @property
    @abstractmethod
    def values(self) -> Tensor:
        """The numbers, or the first rows of them: at least those provided."""

    @abstractmethod
    def provide(self, rows: int) -> None:
        """Prepare the first `rows` rows for use. Raises `MemoryError`."""

    @abstractmethod
    def give_back(self, begin: int, end: int) -> None:
        """Set rows [begin, end) to zero and release memory behind `begin`."""

    def by_head(self) -> Self:
        """Return a view of [rows, heads, ...] as [rows * heads, 1, ...], valid until the plane moves."""
        found = copy.copy(self)
        found._values = self.values.view(-1, 1, *self.values.shape[2:])
        return found

    def close(self) -> None:
        self._values = None


def plane(rows: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Plane:
    """Return numbers [rows, *shape] that do not move, if the device allows."""
    kind = FixedPlane if can_reserve(device) else MovingPlane
    return kind(rows, shape, dtype, device)


def can_reserve(device: torch.device) -> bool:
    """Whether addresses on a device can be reserved, and get memory later."""
    return device.type == "cpu" or virtual_memory.is_available(device.index or 0)


class FixedPlane(Plane):
    """A plane at a fixed address."""

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._shape = (rows, *shape)
        self._dtype = dtype
        self._device = device
        self._row_bytes = math.prod(shape) * dtype.itemsize
        self._range: AddressRange | None = None

    @property
    def values(self) -> Tensor:
        if self._values is None:
            self._values = self._reserved()
        return self._values

    def _reserved(self) -> Tensor:
        size = self._shape[0] * self._row_bytes
        if self._device.type != "cuda":
            # A tensor made in torch's inference mode could not be written to outside of it.
            with torch.inference_mode(False):
                return torch.zeros(self._shape, dtype=self._dtype, device=self._device)
        self._range = AddressRange(size, self._device)
        self._range.provide(1)  # torch asks the driver where the first byte is
        every = device_bytes(self._range.address, self._range.size, self._range.device)
        return every[:size].view(self._dtype).view(self._shape)

    def provide(self, rows: int) -> None:
        values = self.values
        if self._range is not None:
            self._range.provide(min(rows, len(values)) * self._row_bytes)

    def give_back(self, begin: int, end: int) -> None:
        if self._values is None:
            return
        if self._range is not None:
            memory = self._range.release(begin * self._row_bytes)
            end = min(end, memory // max(self._row_bytes, 1))
        self._values[begin:end].zero_()

    def close(self) -> None:
        super().close()
        if self._range is not None:
            self._range.close()
            self._range = None


class MovingPlane(Plane):
    """A plane in torch's memory, which moves to a place twice as large when it lacks rows."""

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._most = rows
        self._shape = shape
        self._dtype = dtype
        self._device = device
        self._step = max(STEP // max(math.prod(shape) * dtype.itemsize, 1), 1)  # rows

    @property
    def values(self) -> Tensor:
        if self._values is None:
            self._values = self._moved(self._rounded(1))
        return self._values

    def provide(self, rows: int) -> None:
        wanted = min(rows, self._most)
        held = 0 if self._values is None else len(self._values)
        if wanted > held:
            self._values = self._moved(self._rounded(max(wanted, 2 * held)))

    def give_back(self, begin: int, end: int) -> None:
        if self._values is None:
            return
        kept = held = len(self._values)
        while kept // 2 >= max(begin, self._step):
            kept //= 2
        if kept < held:
            with suppress(MemoryError):  # then all stay where they are
                self._values = self._moved(kept)
        self._values[begin:end].zero_()

    def _rounded(self, rows: int) -> int:
        return min(-(-rows // self._step) * self._step, self._most)

    def _moved(self, rows: int) -> Tensor:
        """Return a tensor of `rows` rows, with those there are and zeros. Raises `MemoryError`."""
        try:
            with torch.inference_mode(False):  # as in `FixedPlane`
                there = torch.empty((rows, *self._shape), dtype=self._dtype, device=self._device)
        except torch.OutOfMemoryError as error:
            raise MemoryError(f"the GPU is out of memory ({str(error).partition('. ')[0]})") from None
        kept = 0
        if self._values is not None:
            kept = min(rows, len(self._values))
            there[:kept] = self._values[:kept]
        there[kept:] = 0
        self.moves += 1
        return there
