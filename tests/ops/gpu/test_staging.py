"""Values on their way to a device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puna.ops.gpu import staging
from puna.ops.gpu.torch_backend import DeviceBuffer


def test_ranges_of_indices_are_uploaded_and_nothing_else(device: torch.device) -> None:
    buffer = DeviceBuffer((4, 1000), device)
    buffer.host[:] = np.arange(4000).reshape(4, 1000)
    ranges = [(0, 1), (999, 1002), (1500, 1500), (1600, 3000), (3998, 4000)]  # few entries, none, and many
    buffer.upload(ranges)
    expected = np.zeros(4000, np.int32)
    for begin, end in ranges:
        expected[begin:end] = np.arange(begin, end)
    np.testing.assert_array_equal(buffer.array.cpu().numpy().reshape(-1), expected)
    buffer.upload([])
    buffer.upload([(5, 7)])
    assert buffer.array.reshape(-1)[4:8].tolist() == [0, 5, 6, 0]
    buffer.upload()
    np.testing.assert_array_equal(buffer.array.cpu().numpy(), buffer.host)


def test_the_host_may_change_values_at_once(device: torch.device) -> None:
    if device.type != "cuda":
        pytest.skip("set PUNA_GPU_DEVICE=cuda on a machine with a GPU")
    busy = torch.randn(4096, 4096, device=device)
    values, found = np.zeros(100_000, np.int32), []  # more than the pinned memory, in all
    for number in range(100):
        busy = busy @ busy  # the device is behind
        values[:] = number
        found.append(staging.sent(values, device))
    large = np.arange(1 << 20)
    found.append(staging.sent(large, device))
    large[:] = 0
    assert [int(each.min()) for each in found] == [*range(100), 0]
    assert [int(each.max()) for each in found] == [*range(100), (1 << 20) - 1]
