"""Storage on a device against storage in the host's memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from puna.gguf import GGMLType
from puna.ops import KV_TYPES
from puna.ops.gpu.storage import DeviceStorage
from puna.ops.host import HostStorage

ROWS, SHAPE = 40, (3, 64)


def name(kind: GGMLType) -> str:
    return kind.name


def both(kind: GGMLType, device: torch.device) -> tuple[DeviceStorage, HostStorage]:
    """Return storage on the device and the host, with the same numbers in rows 3 to 30."""
    found = DeviceStorage(kind, ROWS, SHAPE, device), HostStorage(kind, ROWS, SHAPE)
    numbers = np.random.default_rng(int(kind)).standard_normal((27, *SHAPE), np.float32)
    numbers[5], numbers[6, 0, 3], numbers[7] = 0, np.inf, numbers[7] * 1e6
    rows = np.arange(3, 30)
    for storage in found:
        storage.provide(ROWS)
    found[0].put(rows, torch.from_numpy(numbers).to(device))
    found[1].put(rows, numbers)
    return found


@pytest.mark.parametrize("kind", KV_TYPES, ids=name)
def test_rows_are_rounded_and_stored_as_on_the_host(kind: GGMLType, device: torch.device) -> None:
    there, here = both(kind, device)
    every = np.arange(ROWS)
    assert there.read(every).dtype == here.read(every).dtype
    # The sign of a zero scale, and the bits of NaN, may differ.
    found, expected = there.numbers(every).cpu().numpy(), here.numbers(every)
    np.testing.assert_array_equal(found, expected)
    assert there.row_bytes == here.row_bytes


@pytest.mark.parametrize("kind", KV_TYPES, ids=name)
def test_what_is_read_can_be_written_to_either(kind: GGMLType, device: torch.device) -> None:
    there, here = both(kind, device)
    rows = np.arange(10, 20)
    stored = there.read(rows)
    here.write(rows - 10, stored)
    there.write(rows - 10, here.read(rows - 10))
    assert np.array_equal(there.read(rows - 10).view(np.uint8), stored.view(np.uint8))


@pytest.mark.parametrize("kind", KV_TYPES, ids=name)
def test_rows_are_copied_as_they_were_before(kind: GGMLType, device: torch.device) -> None:
    there, _ = both(kind, device)
    before = there.read(np.arange(ROWS)).view(np.uint8)
    there.copy(np.array([10, 11, 12]), np.array([11, 12, 10]))
    after = there.read(np.arange(ROWS)).view(np.uint8)
    assert np.array_equal(after[[11, 12, 10]], before[[10, 11, 12]])
    assert np.array_equal(np.delete(after, [10, 11, 12], 0), np.delete(before, [10, 11, 12], 0))


@pytest.mark.parametrize("kind", KV_TYPES, ids=name)
def test_rows_given_back_are_zero_and_the_others_stay(kind: GGMLType, device: torch.device) -> None:
    there, _ = both(kind, device)
    before, place = there.read(np.arange(12)), there.codes.data_ptr()
    there.give_back(12, ROWS)
    there.provide(ROWS)
    assert there.codes.data_ptr() == place
    assert np.array_equal(there.read(np.arange(12)).view(np.uint8), before.view(np.uint8))
    assert not there.numbers(np.arange(12, ROWS)).any()


def test_storage_that_was_never_provided_takes_no_memory(device: torch.device) -> None:
    storage = DeviceStorage(GGMLType.F16, 1 << 40, SHAPE, device)  # more than there is
    storage.close()
