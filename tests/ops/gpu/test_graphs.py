"""Memory and recordings that only a GPU has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puna.ops.gpu.graphs import GraphRecorder
from puna.ops.gpu.torch_backend import DeviceBuffer
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
