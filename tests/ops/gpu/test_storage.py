"""Storage on a device against storage in the host's memory."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from puna.batch import Batch
from puna.gguf import GGMLType
from puna.kvcache.causal import CausalCache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.storage import FIRST_STEP, KVShape
from puna.ops import KV_TYPES
from puna.ops.gpu import planes
from puna.ops.gpu.storage import DeviceStorage
from puna.ops.gpu.torch_backend import TorchBackend
from puna.ops.host import HostStorage

pytestmark = pytest.mark.usefixtures("place_of_storage")

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
def test_rows_given_back_are_zero_and_the_others_stay(
    kind: GGMLType, device: torch.device, place_of_storage: str
) -> None:
    there, _ = both(kind, device)
    before, place, moves = there.read(np.arange(12)), there.codes.data_ptr(), there.moves
    there.give_back(12, ROWS)
    there.provide(ROWS)
    assert (there.moves == moves) == (place_of_storage == "fixed")
    assert (there.codes.data_ptr() == place) or there.moves > moves
    assert np.array_equal(there.read(np.arange(12)).view(np.uint8), before.view(np.uint8))
    assert not there.numbers(np.arange(12, ROWS)).any()


def test_storage_that_was_never_provided_takes_no_memory(device: torch.device) -> None:
    storage = DeviceStorage(GGMLType.F16, 1 << 40, SHAPE, device)  # more than there is
    storage.close()


@pytest.mark.parametrize("kind", KV_TYPES, ids=name)
def test_rows_stay_as_storage_grows(kind: GGMLType, device: torch.device, place_of_storage: str) -> None:
    storage = DeviceStorage(kind, ROWS, SHAPE, device)
    numbers = torch.randn(ROWS, *SHAPE, generator=torch.Generator().manual_seed(1)).to(device)
    places = set()
    for rows in (1, 2, 7, 8, 30, ROWS):
        storage.provide(rows)
        places.add(storage.codes.data_ptr())
        storage.put(np.arange(rows - 1, rows), numbers[rows - 1 : rows])
    written = np.array([0, 1, 6, 7, 29, ROWS - 1])
    whole = DeviceStorage(kind, ROWS, SHAPE, device)
    whole.provide(ROWS)
    whole.put(written, numbers[written])
    every = np.arange(ROWS)
    assert torch.equal(storage.numbers(every), whole.numbers(every))
    assert torch.equal(storage.by_head().numbers(every), whole.by_head().numbers(every))
    assert (storage.moves > 0) == (len(places) > 1) == (place_of_storage == "moving")


def test_moving_storage_has_at_most_twice_the_rows_in_use(
    device: torch.device, place_of_storage: str
) -> None:
    if place_of_storage == "fixed":
        pytest.skip("its memory is counted where it is reserved")
    storage = DeviceStorage(GGMLType.F16, 1 << 40, SHAPE, device)
    for rows in (1, 3, 100, 101, 150):
        storage.provide(rows)
        assert rows <= len(storage.codes) <= 2 * rows
    moves = storage.moves
    storage.give_back(120, 150)
    assert storage.moves == moves  # too few to move the others
    storage.give_back(5, 120)
    assert 5 <= len(storage.codes) <= 10
    assert storage.moves == moves + 1
    storage.close()


def test_a_cache_tells_that_its_storage_has_moved(device: torch.device, place_of_storage: str) -> None:
    """A recording holds addresses, so it must not be used again."""
    ops = TorchBackend(device)
    cache = CausalCache(ops, [KVShape(1, 32, 32)], sequences=1, context=3 * FIRST_STEP)
    states = RecurrentCache(ops, {0: {"state": (4,)}}, sequences=1)
    found = []
    for begin in range(0, 2 * FIRST_STEP + 64, 64):
        batch = Batch.of([0] * 64, list(range(begin, begin + 64)), [0] * 64, [63])
        for each in (cache, states):
            each.start_forward(batch)
        addresses = (
            cache.storage.layers[0].keys.codes.data_ptr(),  # type: ignore[attr-defined]
            states.state(0).states["state"].codes.data_ptr(),
        )
        found.append((*addresses, cache.generation, states.generation))
    moved = [[now[i] != before[i] for before, now in pairwise(found)] for i in range(4)]
    assert moved[0] == moved[2]
    assert moved[1] == moved[3]
    assert [any(each) for each in moved] == [place_of_storage == "moving"] * 4
    for each in (cache, states):
        each.close()


def test_storage_for_which_there_is_no_memory_stays_as_it_was(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planes, "can_reserve", lambda device: False)
    storage, _ = both(GGMLType.F16, device)
    before, place = storage.read(np.arange(ROWS)), storage.codes.data_ptr()
    larger = DeviceStorage(GGMLType.F16, 1 << 20, SHAPE, device)
    larger.provide(1)

    def fail(*shape: object, **named: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has none.")

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(MemoryError, match=r"the GPU is out of memory \(CUDA out of memory\)"):
        larger.provide(1 << 20)
    storage.give_back(ROWS, ROWS)
    assert storage.codes.data_ptr() == place
    assert np.array_equal(storage.read(np.arange(ROWS)), before)
