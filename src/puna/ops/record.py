"""Recording the kernel calls of a computation once, to make them all again with one call.

What CUDA graphs are on a GPU. The extension notes each kernel call with its arguments (`csrc/python/program.h`),
which are addresses; so a computation can be replayed when nothing but kernels computes in it, and when what
it reads anew each time lies in tensors that stay where they are. The first is not taken on trust: while
recording, every torch operation is looked at. Views and allocations pass; sums and products, which models
write as `+` and `*`, are done by kernels that give the same bits; anything else is an obstacle, and there
is no program.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from puna import _native

if TYPE_CHECKING:
    from numpy.typing import NDArray

aten = torch.ops.aten
_ALLOCATIONS = {
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.new_empty.default,
}
#: Ways out of torch, after which Python could do anything with the values.
_READS = {Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__, Tensor.untyped_storage}
_ALIGNMENT = 64


class Memory:
    """Where recorded computations put what they compute. A block is free again when no tensor uses it.

    Several programs of which only one runs at a time may share it: it then holds about twice what the largest
    needs, not the sum of all.
    """

    def __init__(self) -> None:
        self._blocks: list[NDArray[np.uint8]] = []
        self._free: list[NDArray[np.uint8]] = []
        self._watched: dict[int, weakref.ref[Any]] = {}

    @property
    def nbytes(self) -> int:
        return sum(block.size for block in self._blocks)

    def empty(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """A contiguous tensor."""
        size = shape.numel() * dtype.itemsize
        fitting = [block for block in self._free if block.size >= size]
        block = min(fitting, key=len) if fitting else self._new_block(size)
        self._free = [other for other in self._free if other is not block]
        # torch holds this very array until the last tensor over it is gone, views included.
        memory = block[:size]
        key = id(memory)

        def release(_: object) -> None:
            del self._watched[key]
            self._free.append(block)

        self._watched[key] = weakref.ref(memory, release)
        return torch.from_numpy(memory).view(dtype).view(shape)

    def block(self, tensor: Tensor) -> NDArray[np.uint8] | None:
        """The block in which `tensor` begins, or None if it lies elsewhere."""
        begin = tensor.data_ptr()
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


class Program:
    """A recorded computation: `run` does it again; `result`, always the same tensor, has what comes out.

    The result is lost when another program with the same memory is recorded or runs.
    """

    def __init__(self, calls: _native.Program, result: Tensor, memory: Memory, kept: list[Tensor]) -> None:
        self._calls = calls
        self._memory = memory
        self._kept = kept  # everything else the calls point to, weights aside
        self.result = result

    def run(self) -> None:
        """Raises what the kernels raise."""
        self._calls.run()

    def run_timed(self) -> dict[str, float]:
        """As `run`; returns the seconds spent in each kind of kernel."""
        seconds: dict[str, float] = {}
        for kernel, spent in zip(self._calls.names, self._calls.run_timed(), strict=True):
            seconds[kernel] = seconds.get(kernel, 0.0) + spent
        return seconds

    def spoil(self) -> None:
        """Make nonsense (NaN, indices of -1) of every value the program is to compute."""
        self._memory.spoil()

    @property
    def kernels(self) -> list[str]:
        """The kernels in order, by the names of the extension's functions."""
        return self._calls.names


@dataclass(frozen=True)
class Recorded:
    """What came of recording: the result, and a program or the reason why there is none."""

    result: Tensor
    program: Program | None
    obstacle: str = ""


def record(compute: Callable[[], Tensor], memory: Memory) -> Recorded:
    """Call `compute`, noting what it does.

    What it computes goes to `memory`, in which later values take the place of those that are not needed any
    more, as they do in `compute`. Tensors it reads are kept alive, those in a model's weights excepted: the
    model must outlive the program. Errors of `compute` are passed on.
    """
    calls, notes = _native.Program(), _Notes(memory)
    calls.begin()
    try:
        with _Operations(notes), _Methods(notes):
            result = compute()
    finally:
        calls.end()
    block = memory.block(result)
    if block is None or not result.is_contiguous():
        notes.hinder("the result is not computed by kernels")
    if block is None or notes.obstacle:
        return Recorded(result, None, notes.obstacle)
    begin = result.data_ptr() - block.ctypes.data
    values = torch.from_numpy(block[begin : begin + result.nbytes])  # which does not count as a use
    again = values.view(result.dtype).view(result.shape)
    return Recorded(result, Program(calls, again, memory, notes.kept))


class _Notes:
    """What is found while recording."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.kept: list[Tensor] = []
        self.obstacle = ""

    def hinder(self, obstacle: str) -> None:
        self.obstacle = self.obstacle or obstacle

    def address(self, tensor: Tensor) -> int:
        """Where `tensor` lies; a kernel is going to be told."""
        if self.memory.block(tensor) is None:
            self.kept.append(tensor)
        return tensor.data_ptr()


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every torch operation on tensors."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # torch would shield the method below from its compiler, and import that for it: 800 modules, 70 MiB,
        # more than a second in the middle of an answer. Nothing here is ever compiled.
        return False

    def __init__(self, notes: _Notes) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._notes = notes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ALLOCATIONS:
            planned = func(*args, **{**kwargs, "device": "meta", "pin_memory": False})
            if planned.is_contiguous() and torch.device(kwargs.get("device") or "cpu").type == "cpu":
                return self._notes.memory.empty(planned.shape, planned.dtype)
        elif not kwargs and (combined := self._combined(func, *args)) is not None:
            return combined
        result = func(*args, **kwargs)
        if func._schema.is_mutable or not _is_view(result, args):
            self._notes.hinder(f"it uses {func}")
        return result

    def _combined(self, func: Any, *args: Any) -> Tensor | None:
        """A sum or product done by a kernel, if this is one of contiguous float32 tensors of equal shape."""
        if len(args) != 2 or not _plain(args[0]):
            return None
        first, second = args
        alike = _plain(second) and second.shape == first.shape
        kernel: Callable[[int, Any, int, int], None]
        operand: Any
        if func is aten.mul.Tensor and isinstance(second, (int, float)):
            kernel, operand = _native.scale, second
        elif func is aten.mul.Tensor and alike:
            kernel, operand = _native.multiply, self._notes.address(second)
        elif func is aten.add.Tensor and alike:
            kernel, operand = _native.add, self._notes.address(second)
        else:
            return None
        result = self._notes.memory.empty(first.shape, first.dtype)
        kernel(self._notes.address(first), operand, first.numel(), result.data_ptr())
        return result


class _Methods(TorchFunctionMode):
    """Sees every call of torch from Python: which tensors kernels are given, and which are read otherwise."""

    def __init__(self, notes: _Notes) -> None:
        super().__init__()
        self._notes = notes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _READS:
            self._notes.hinder(f"it reads a tensor's values with {func.__name__}")
        elif func == Tensor.data_ptr:
            return self._notes.address(args[0])
        return func(*args, **(kwargs or {}))


def _plain(value: Any) -> bool:
    return (
        isinstance(value, Tensor) and value.dtype is torch.float32 and value.is_contiguous() and value.is_cpu
    )


def _is_view(result: Any, args: tuple[Any, ...]) -> bool:
    """Whether `result`, one tensor or several, is nothing but memory of the arguments."""
    results = [result] if isinstance(result, Tensor) else result
    if not isinstance(results, (list, tuple)) or not results:
        return False
    given = {value.untyped_storage().data_ptr() for value in args if isinstance(value, Tensor)}
    return all(isinstance(value, Tensor) and value.untyped_storage().data_ptr() in given for value in results)
