"""Recording the kernel calls of a computation.

The extension notes each kernel call with its arguments (`csrc/python/program.h`), which are addresses; so a
computation can be replayed when nothing but kernels computes in it, and when what it reads anew each time is
in arrays that stay where they are. The first is not taken on trust: while recording, every use of an array
that kernels computed, or that indices are in, is looked at (`traced.py`).
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from puna import _native
from puna.ops.cpu.traced import Traced, told
from puna.ops.host import HostIndexBuffer
from puna.ops.recording import Recorded

_ALIGNMENT = 64


class RecorderMemory:
    """Where recorded computations put what they compute. A block is free again when no array uses it.

    Several programs of which only one runs at a time share it: it then holds about twice what the largest
    needs, not the sum of all.
    """

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.uint8]] = []
        self._free: list[NDArray[np.uint8]] = []
        self._watched: dict[int, weakref.ref[Any]] = {}

    @property
    def nbytes(self) -> int:
        return sum(block.size for block in self._blocks)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Traced:
        """A contiguous array."""
        count = math.prod(shape)
        size = max(count * np.dtype(dtype).itemsize, 1)
        fitting = [block for block in self._free if block.size >= size]
        block = min(fitting, key=len) if fitting else self._new_block(size)
        self._free = [other for other in self._free if other is not block]
        # numpy holds this very object until the last array over it is gone, views included.
        memory = (ctypes.c_uint8 * size).from_buffer(block.data)
        key = id(memory)

        def release(_: object) -> None:
            del self._watched[key]
            self._free.append(block)

        self._watched[key] = weakref.ref(memory, release)
        array: Traced = np.frombuffer(memoryview(memory), dtype, count).reshape(shape).view(Traced)
        return array

    def block(self, array: NDArray[Any]) -> NDArray[np.uint8] | None:
        """The block in which `array` begins, or None if it lies elsewhere."""
        begin = array.ctypes.data
        return next((b for b in self._blocks if 0 <= begin - b.ctypes.data < b.size), None)

    def spoil(self) -> None:
        """Make nonsense (NaN, indices of -1) of all values."""
        for block in self._blocks:
            block.fill(255)

    def _new_block(self, size: int) -> NDArray[np.uint8]:
        # Powers of two, so that computations of nearly the same size fit the same blocks.
        wanted = 1 << max(size - 1, _ALIGNMENT - 1).bit_length()
        memory = np.empty(wanted + _ALIGNMENT, np.uint8)
        begin = -memory.ctypes.data % _ALIGNMENT
        self._blocks.append(memory[begin : begin + wanted])
        return self._blocks[-1]


class CPUProgram:
    """A recorded computation (see `puna.ops.recording`)."""

    def __init__(
        self, calls: _native.Program, result: NDArray[Any], memory: RecorderMemory, kept: list[NDArray[Any]]
    ) -> None:
        self._calls = calls
        self._memory = memory
        self._kept = kept  # everything else the calls point to, packed weights aside
        self.result = result

    def run(self) -> None:
        self._calls.run()

    def run_timed(self) -> dict[str, float]:
        seconds: dict[str, float] = {}
        for kernel, spent in zip(self._calls.names, self._calls.run_timed(), strict=True):
            seconds[kernel] = seconds.get(kernel, 0.0) + spent
        return seconds

    def spoil(self) -> None:
        self._memory.spoil()

    @property
    def kernels(self) -> list[str]:
        """By the names of the extension's functions."""
        return self._calls.names


class CPURecorder:
    """Records computations into one memory (see `puna.ops.recording`)."""

    def __init__(self) -> None:
        self.memory = RecorderMemory()

    def record(
        self, compute: Callable[..., NDArray[Any]], inputs: Sequence[HostIndexBuffer] = ()
    ) -> Recorded:
        calls, notes = _native.Program(), _Notes(self.memory)
        calls.begin(notes)
        try:
            with told(notes):
                result = compute(*(buffer.array for buffer in inputs))
        finally:
            calls.end()
        block = self.memory.block(result)
        if block is None or not result.flags.c_contiguous:
            notes.hinder("the result is not computed by kernels")
        if block is None or notes.obstacle:
            return Recorded(result, None, notes.obstacle)
        begin = result.ctypes.data - block.ctypes.data
        values = block[begin : begin + result.nbytes]  # which does not count as a use
        again = values.view(result.dtype).reshape(result.shape)
        return Recorded(result, CPUProgram(calls, again, self.memory, notes.kept))


class _Notes:
    """What is found while recording."""

    def __init__(self, memory: RecorderMemory) -> None:
        self._memory = memory
        self.empty = memory.empty
        self.kept: list[NDArray[Any]] = []
        self.obstacle = ""

    def hinder(self, obstacle: str) -> None:
        self.obstacle = self.obstacle or obstacle

    def uses(self, array: NDArray[Any]) -> None:
        """A kernel has been given `array`."""
        if self._memory.block(array) is None:
            self.kept.append(array)
