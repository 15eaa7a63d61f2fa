"""Recording of computations as CUDA graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from puna.ops.gpu.torch_backend import DeviceBuffer
from puna.ops.gpu.virtual_memory import device_bytes
from puna.ops.recording import Recorded


class GraphProgram:
    """A recorded computation (see `puna.ops.recording`)."""

    #: A graph does not tell what it runs.
    kernels: Sequence[str] = ("graph",)

    def __init__(self, graph: torch.cuda.CUDAGraph, result: Tensor, memory: tuple[int, int]) -> None:
        self._graph = graph
        self._memory = memory
        self.result = result

    def run(self) -> None:
        self._graph.replay()

    def run_timed(self) -> dict[str, float]:
        torch.cuda.synchronize(self.result.device)
        began = time.perf_counter()
        self.run()
        torch.cuda.synchronize(self.result.device)
        return {"graph": time.perf_counter() - began}

    def spoil(self) -> None:
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
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads, which encode images, say, may use the device meanwhile.
            with (
                torch.cuda.device(self._device),
                torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"),
            ):
                result = compute(*arrays)
        except RuntimeError as error:  # something in it waits for the device
            return Recorded(compute(*arrays), None, str(error).partition("\n")[0])
        graph.replay()
        return Recorded(result, GraphProgram(graph, result, self._pool))
