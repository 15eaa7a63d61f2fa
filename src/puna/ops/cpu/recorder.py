"""Recording of the kernel calls of a computation.

The extension notes each kernel call with its arguments (`csrc/python/program.h`), which are addresses. So a
computation can be replayed if only kernels compute in it, and if its changing inputs are in arrays that stay
in place. The former is verified: while recording, every use of an array that kernels computed, or that holds
indices, is inspected (`Traced`).
"""

from __future__ import annotations

import ctypes
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from puna import _native
from puna.ops.host import HostBuffer
from puna.ops.recording import Recorded


class Notes(Protocol):
    """A listener to a recording."""

    def hinder(self, obstacle: str) -> None:
        """Report an obstacle, which rules out a replay."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Traced:
        """Return a contiguous array in the recording's memory."""


class _Current(threading.local):
    notes: Notes | None = None


_current = _Current()
#: Attributes that do not reveal values, and those numpy itself reads before calling the methods below.
_ALLOWED = frozenset(
    (
        "shape", "ndim", "dtype", "size", "nbytes", "itemsize", "flags", "ctypes", "reshape", "__class__",
        "__array_priority__", "__array_finalize__", "__array_ufunc__", "__array_wrap__",
    )
)  # fmt: skip


#: The only scalar types that leave the dtype unchanged; numpy's own would not.
_NUMBERS = (int, float)


class Traced(np.ndarray[Any, np.dtype[Any]]):
    """A plain array whose uses a recording can see.

    Sums and products of float32 arrays of equal shape or with a number, and products with a vector for every
    row, are done by kernels that give the same bits as numpy. Views pass. Anything else is an obstacle.
    """

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        notes = _current.notes
        if notes is not None:
            if method == "__call__" and not kwargs and (combined := _combined(ufunc, *inputs)) is not None:
                return combined
            notes.hinder(f"it uses numpy.{ufunc.__name__}")
        inputs = tuple(map(_plain, inputs))
        if "out" in kwargs:
            kwargs["out"] = tuple(map(_plain, kwargs["out"]))
        return getattr(ufunc, method)(*inputs, **kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        _hinder(f"it uses numpy.{func.__name__}")
        return super().__array_function__(func, types, args, kwargs)

    def __getattribute__(self, name: str) -> Any:
        if _current.notes is not None and name not in _ALLOWED:
            _hinder(f"it uses an array's `{name}`")
        return super().__getattribute__(name)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        if _current.notes is not None and not (isinstance(found, Traced) and _is_plain_index(index)):
            _hinder("it reads an array's values by index")
        return found

    def reshape(self, *shape: Any, **order: Any) -> Any:
        if _current.notes is not None and not super().__getattribute__("flags").c_contiguous:
            _hinder("it copies a strided array")
        return super().reshape(*shape, **order)

    def __setitem__(self, index: Any, value: Any) -> None:
        _hinder("it writes to an array")
        super().__setitem__(index, value)

    def __iter__(self) -> Iterator[Any]:
        _hinder("it reads an array's values one by one")
        return super().__iter__()

    def __bool__(self) -> bool:
        _hinder("it reads an array's value")
        return super().__bool__()

    def __int__(self) -> int:
        _hinder("it reads an array's value")
        return super().__int__()

    def __float__(self) -> float:
        _hinder("it reads an array's value")
        return super().__float__()

    def __index__(self) -> int:
        _hinder("it reads an array's value")
        return super().__index__()

    def __contains__(self, value: Any) -> bool:
        _hinder("it looks for an array's value")
        return super().__contains__(value)


@contextmanager
def reporting_to(notes: Notes) -> Iterator[None]:
    """Report this thread's uses of traced arrays to `notes` within a `with` block."""
    _current.notes = notes
    try:
        yield
    finally:
        _current.notes = None


def empty(*shape: int) -> Traced:
    """Return a contiguous float32 array for kernels to fill."""
    notes = _current.notes
    if notes is not None:
        return notes.empty(shape, "float32")
    return np.empty(shape, np.float32).view(Traced)


def read(array: NDArray[Any]) -> NDArray[Any]:
    """Return the values of `array` as a plain array."""
    _hinder("it reads an array's values")
    return _plain(array)  # type: ignore[no-any-return]


def _hinder(obstacle: str) -> None:
    if _current.notes is not None:
        _current.notes.hinder(obstacle)


def _plain(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, Traced) else value


def _is_plain_index(index: Any) -> bool:
    """Whether the index makes a view."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is ... or isinstance(part, (int, slice)) for part in parts)


def _combined(ufunc: np.ufunc, *inputs: Any) -> NDArray[Any] | None:
    """Return a sum or product computed by a kernel, or None if no kernel does."""
    if len(inputs) != 2:
        return None
    first, second = inputs
    if ufunc not in (np.add, np.multiply):
        return None
    if type(first) in _NUMBERS:
        first, second = second, first
    if not _is_plain_float32(first):
        return None
    if type(second) in _NUMBERS:
        return (_native.offset if ufunc is np.add else _native.scale)(first, second)
    if not _is_plain_float32(second):
        return None
    if ufunc is np.multiply and second.shape in (first.shape, first.shape[-1:]):
        return _native.multiply(first, second)
    if second.shape != first.shape:
        return None
    return _native.add(first, second)


def _is_plain_float32(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float32 and value.flags.c_contiguous


_ALIGNMENT = 64


class RecorderMemory:
    """Memory for the results of recorded computations. A block is free again when no array uses it.

    Programs that never run at the same time share it, so it holds about twice what the largest needs, not the
    sum of all.
    """

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.uint8]] = []
        self._free: list[NDArray[np.uint8]] = []
        self._watched: dict[int, weakref.ref[Any]] = {}

    @property
    def nbytes(self) -> int:
        return sum(block.size for block in self._blocks)

    def empty(self, shape: tuple[int, ...], dtype: str) -> Traced:
        """Return a contiguous array."""
        count = math.prod(shape)
        size = max(count * np.dtype(dtype).itemsize, 1)
        fitting = [block for block in self._free if block.size >= size]
        block = min(fitting, key=len) if fitting else self._new_block(size)
        self._free = [other for other in self._free if other is not block]
        # numpy holds this object until the last array over it is gone, including views.
        memory = (ctypes.c_uint8 * size).from_buffer(block.data)
        key = id(memory)

        def release(_: object) -> None:
            del self._watched[key]
            self._free.append(block)

        self._watched[key] = weakref.ref(memory, release)
        array: Traced = np.frombuffer(memoryview(memory), dtype, count).reshape(shape).view(Traced)
        return array

    def block(self, array: NDArray[Any]) -> NDArray[np.uint8] | None:
        """Return the block in which `array` begins, or None if it lies elsewhere."""
        begin = array.ctypes.data
        return next((b for b in self._blocks if 0 <= begin - b.ctypes.data < b.size), None)

    def spoil(self) -> None:
        """Overwrite all values with nonsense (NaN, indices of -1)."""
        for block in self._blocks:
            block.fill(255)

    def _new_block(self, size: int) -> NDArray[np.uint8]:
        # Powers of two, so that blocks fit computations of similar size.
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
        self._kept = kept  # everything else the calls point to, except packed weights
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
        """The names of the extension's functions, in order."""
        return self._calls.names


class CPURecorder:
    """A recorder whose computations share one memory (see `puna.ops.recording`)."""

    def __init__(self) -> None:
        self.memory = RecorderMemory()

    def record(self, compute: Callable[..., NDArray[Any]], inputs: Sequence[HostBuffer] = ()) -> Recorded:
        calls, notes = _native.Program(), _Notes(self.memory)
        calls.begin(notes)
        try:
            with reporting_to(notes):
                result = compute(*(buffer.array for buffer in inputs))
        finally:
            calls.end()
        block = self.memory.block(result)
        if block is None or not result.flags.c_contiguous:
            notes.hinder("the result is not computed by kernels")
        if block is None or notes.obstacle:
            return Recorded(result, None, notes.obstacle)
        begin = result.ctypes.data - block.ctypes.data
        values = block[begin : begin + result.nbytes]  # does not count as a use
        again = values.view(result.dtype).reshape(result.shape)
        return Recorded(result, CPUProgram(calls, again, self.memory, notes.kept))


class _Notes:
    """Findings of a recording."""

    def __init__(self, memory: RecorderMemory) -> None:
        self._memory = memory
        self.empty = memory.empty
        self.kept: list[NDArray[Any]] = []
        self.obstacle = ""

    def hinder(self, obstacle: str) -> None:
        self.obstacle = self.obstacle or obstacle

    def uses(self, array: NDArray[Any]) -> None:
        """Note that a kernel was given `array`."""
        if self._memory.block(array) is None:
            self.kept.append(array)
