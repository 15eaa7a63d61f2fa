"""Recordings in segments, and memory and graphs that only a GPU has."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from puna.ops import Weight
from puna.ops.gpu.graphs import GraphRecorder, Segments
from puna.ops.gpu.torch_backend import DeviceBuffer, TorchBackend
from puna.ops.gpu.triton_backend import TritonBackend
from puna.ops.gpu.virtual_memory import AddressRange, device_bytes


@pytest.fixture
def gpu(device: torch.device) -> torch.device:
    if device.type != "cuda":
        pytest.skip("set PUNA_GPU_DEVICE=cuda on a machine with a GPU")
    return device


def test_memory_is_added_in_place_and_zero(gpu: torch.device) -> None:
    reserved = AddressRange(1 << 42, gpu)  # far more than any GPU has
    reserved.provide(1000)
    first = device_bytes(reserved.address, 1000, reserved.device)
    first.fill_(7)
    reserved.provide(10 << 20)
    every = device_bytes(reserved.address, 10 << 20, reserved.device)
    assert (every[:1000] == 7).all()
    assert not every[1000:].any()
    end = reserved.release(5 << 20)
    assert 1000 <= end <= 10 << 20
    reserved.provide(10 << 20)
    assert not every[1000:].any()
    reserved.close()


def test_a_recording_reads_its_inputs_anew(gpu: torch.device) -> None:
    table = torch.arange(100.0, device=gpu)
    numbers = DeviceBuffer((4,), gpu)
    numbers.host[:] = [1, 2, 3, 4]
    numbers.upload()
    recorded = GraphRecorder(gpu).record(lambda rows: table[rows] * 2, [numbers])
    assert recorded.program is not None, recorded.obstacle
    assert recorded.result.tolist() == [2, 4, 6, 8]
    numbers.host[:] = [9, 8, 7, 6]
    numbers.upload()
    recorded.program.spoil()
    assert torch.isnan(recorded.program.result).all()
    recorded.program.run()
    assert recorded.program.result.tolist() == [18, 16, 14, 12]


def test_what_waits_for_the_device_is_an_obstacle(gpu: torch.device) -> None:
    table = torch.arange(10.0, device=gpu)
    recorded = GraphRecorder(gpu).record(lambda: table + table.sum().item(), [])
    assert recorded.program is None
    assert recorded.obstacle
    assert np.array_equal(recorded.result.cpu().numpy(), np.arange(10.0) + 45)


class Calls(TorchDispatchMode):
    """A graph of torch's operations on the CPU, whose results stay at their addresses.

    They are not there before it runs, as on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given = [_memory(each) for each in args if isinstance(each, Tensor)]
        if isinstance(result, Tensor) and _memory(result) not in given:  # no view
            self.calls.append((function, args, kwargs or {}, result))
        return result

    def begin(self) -> None:
        self.__enter__()

    def end(self) -> None:
        self.__exit__(None, None, None)
        for *_, result in self.calls:
            result.fill_(torch.nan)

    def run(self) -> None:
        for function, args, kwargs, result in self.calls:
            result.copy_(function(*args, **kwargs))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_a_pass_with_weights_on_the_host_is_recorded_in_segments() -> None:
    ops = TorchBackend(torch.device("cpu"))
    values = torch.randn(2, 8, 8)
    here, there = ([Weight.from_values("w", each.numpy()) for each in values] for _ in range(2))
    for weight in there:
        weight.on_host = True
    x = torch.randn(3, 8)

    def compute(first: Weight, second: Weight) -> Tensor:
        doubled = x * 2
        inner: Tensor = ops.linear(doubled, first) + doubled
        result: Tensor = ops.linear(inner * inner, second) * 3
        return result

    graphs: list[Calls] = []

    def graph() -> Calls:
        graphs.append(Calls())
        return graphs[-1]

    segments = Segments(graph)
    result = segments.record(lambda: compute(*there))
    assert torch.isnan(result).all()
    assert [bool(graph.calls) for graph in graphs] == [True] * 3
    segments.run()
    torch.testing.assert_close(result, compute(*here), atol=1e-4, rtol=1e-4)
    segments.spoil()
    x.neg_()
    segments.run()
    assert torch.equal(result, compute(*there))


class Cache:
    """An object that only the collector of garbage can release."""

    def __init__(self, released: list[str]) -> None:
        self.itself = self
        self.released = released

    def __del__(self) -> None:
        self.released.append("cache")


def test_no_garbage_is_collected_during_a_recording() -> None:
    """A cache that is released calls functions that would end the capture."""
    released: list[str] = []
    Cache(released)

    def compute() -> Tensor:
        objects = [[] for _ in range(100_000)]  # for which the collector would run
        assert objects
        assert not released
        return torch.ones(1)

    assert gc.isenabled()
    Segments(Calls).record(compute)
    assert gc.isenabled()
    gc.collect()
    assert released


def test_a_recording_on_a_gpu_waits_for_its_parts_on_the_host(gpu: torch.device) -> None:
    ops = TritonBackend(gpu)
    weight = Weight.from_values("w", torch.randn(64, 64).numpy())
    weight.on_host = True
    table = torch.randn(100, 64, device=gpu)
    numbers = DeviceBuffer((2,), gpu)

    def compute(rows: Tensor) -> Tensor:
        inner: Tensor = ops.linear(table[rows], weight) * 2
        result: Tensor = ops.linear(inner, weight) + inner
        return result

    recorded = GraphRecorder(gpu).record(compute, [numbers])
    assert recorded.program is not None, recorded.obstacle
    for rows in ([3, 5], [99, 0]):
        numbers.host[:] = rows
        numbers.upload()
        recorded.program.spoil()
        recorded.program.run()
        assert torch.equal(recorded.program.result, compute(numbers.array))
