"""Recording of computations as CUDA graphs.

A graph cannot contain what the processor computes. So a pass with weights on the host becomes several graphs,
with the host's parts between them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from puna.ops.gpu.host_parts import HostPart, interrupting
from puna.ops.gpu.torch_backend import DeviceBuffer
from puna.ops.gpu.virtual_memory import device_bytes
from puna.ops.recording import Recorded


class Graph(Protocol):
    """A sequence of a device's kernels."""

    def begin(self) -> None:
        """Begin to capture what is launched."""

    def end(self) -> None:
        """End the capture."""

    def run(self) -> None:
        """Launch it all again."""


class _CudaGraph:
    def __init__(self, pool: Any) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._pool = pool

    def begin(self) -> None:
        # Other threads, which encode images, say, may use the device meanwhile.
        self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")

    def end(self) -> None:
        self._graph.capture_end()

    def run(self) -> None:
        self._graph.replay()


class Segments:
    """A recorded pass: graphs, and between them parts of the host."""

    def __init__(self, graph: Callable[[], Graph]) -> None:
        """`graph` makes an empty one."""
        self._new = graph
        self._steps: list[Graph | HostPart] = []

    def record(self, compute: Callable[[], Tensor]) -> Tensor:
        """Return the result of `compute`, which is not computed before `run`.

        Raises `RuntimeError` if something in it waits for the device.
        """
        with _uncollected():
            self._begin()
            try:
                with interrupting(self):
                    result = compute()
            except BaseException:
                with suppress(RuntimeError):  # of a capture that has failed
                    self._open.end()
                raise
            self._end()
            return result

    def interrupt(self, part: HostPart) -> None:
        self._end()
        part.take_memory()
        self._steps.append(part)
        self._begin()

    def _begin(self) -> None:
        self._open = self._new()
        self._open.begin()

    def _end(self) -> None:
        self._open.end()
        self._steps.append(self._open)

    def run(self) -> None:
        """Compute the result anew."""
        for step in self._steps:
            step.run()

    def spoil(self) -> None:
        """Overwrite what the host's parts compute with nonsense."""
        for step in self._steps:
            if isinstance(step, HostPart):
                step.spoil()


@contextmanager
def _uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile: a cache that is released waits for the device."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


class GraphProgram:
    """A recorded computation (see `puna.ops.recording`)."""

    #: A graph does not tell what it runs.
    kernels: Sequence[str] = ("graph",)

    def __init__(self, segments: Segments, result: Tensor, memory: tuple[int, int]) -> None:
        self._segments = segments
        self._memory = memory
        self.result = result

    def run(self) -> None:
        self._segments.run()

    def run_timed(self) -> dict[str, float]:
        torch.cuda.synchronize(self.result.device)
        began = time.perf_counter()
        self.run()
        torch.cuda.synchronize(self.result.device)
        return {"graph": time.perf_counter() - began}

    def spoil(self) -> None:
        self._segments.spoil()
        for segment in torch.cuda.memory_snapshot():
            if segment["segment_pool_id"] == self._memory:
                size, device = segment["total_size"], segment["device"]
                device_bytes(segment["address"], size, device).fill_(255)


class GraphRecorder:
    """A recorder whose graphs share one pool of memory, since they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # torch's own is on the first device

    def record(self, compute: Callable[..., Tensor], inputs: Sequence[DeviceBuffer]) -> Recorded:
        arrays = [buffer.array for buffer in inputs]
        segments = Segments(lambda: _CudaGraph(self._pool))
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()  # the pool cannot take memory that torch holds for others
        try:
            with torch.cuda.stream(self._stream):
                result = segments.record(lambda: compute(*arrays))
        except RuntimeError as error:  # something in it waits for the device
            return Recorded(compute(*arrays), None, str(error).partition("\n")[0])
        program = GraphProgram(segments, result, self._pool)
        program.run()
        return Recorded(result, program)
