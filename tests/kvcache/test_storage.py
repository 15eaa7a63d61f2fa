"""Memory is taken as cells are used and returned when they are not."""

from __future__ import annotations

import mmap

import numpy as np
import psutil
import pytest

from puna.batch import Batch
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.storage import FIRST_STEP, KVStorage
from puna.kvcache.types import F16_TYPES
from puna.kvcache.windows import SlidingCache
from puna.kvcache.wrapper import WrapperCache
from puna.ops.host import HostStorage
from puna.system import has_linux
from tests.kvcache.probe import OPS, stretches

MIB = 1 << 20

RETURNED = pytest.mark.skipif(not has_linux(), reason="other systems take memory back when they need it")


def resident(*parts: HostStorage) -> int:
    """Return the resident bytes of the given parts, by the page table, whatever else the process holds."""
    total = 0
    with open("/proc/self/pagemap", "rb") as pagemap:
        for part in parts:
            address = part.stored.ctypes.data
            first = address // mmap.PAGESIZE
            end = -(-(address + part.stored.nbytes) // mmap.PAGESIZE)
            pagemap.seek(8 * first)
            entries = np.frombuffer(pagemap.read(8 * (end - first)), np.uint64)
            total += int((entries >> np.uint64(63)).sum()) * mmap.PAGESIZE
    return total


def stored(cache: CausalCache) -> list[HostStorage]:
    return [half for layer in cache.storage.layers.values() for half in (layer.keys, layer.values)]


def fill(cache: CausalCache, sequence: int, count: int) -> None:
    begin = cache.length(sequence)
    cache.start_forward(Batch.of([0] * count, list(range(begin, begin + count)), [sequence] * count, []))
    rows = np.full((count, 8, 128), sequence + 1, np.float32)
    cache.layer(0).put(rows, rows)


def long_cache() -> CausalCache:
    """Return a cache with 4 KiB per cell, 16 GiB if all were used."""
    return CausalCache(OPS, [KVShape(8, 128, 128)], sequences=4, context=1 << 20)


def test_a_long_context_takes_no_memory_until_used() -> None:
    cache = long_cache()
    assert resident(*stored(cache)) == 0
    assert cache.allocated_bytes == 16 << 30
    assert cache.provided_bytes == 0
    fill(cache, 0, 10)
    assert cache.provided_bytes == FIRST_STEP * 4096
    assert 0 < resident(*stored(cache)) <= FIRST_STEP * 4096
    cache.close()


def test_storage_grows_in_steps_without_moving() -> None:
    cache = long_cache()
    fill(cache, 3, 600)  # more rows than the buffers hold, so new ones are made
    addresses, generation = cache.storage.layers[0].keys.stored.ctypes.data, cache.generation
    provided = []
    for _ in range(5):
        fill(cache, 0, 60)
        fill(cache, 1, 600)
        provided.append(cache.provided_bytes // 4096 // FIRST_STEP)
    assert provided == [2, 2, 4, 4, 4]
    assert cache.storage.layers[0].keys.stored.ctypes.data == addresses
    assert cache.generation == generation
    fill(cache, 2, 600)
    assert (cache.layer(0).view().keys.read(cache.cells.cells(1)[[0, -1]]) == 2).all()
    cache.close()


@RETURNED
@pytest.mark.slow
def test_memory_is_returned_after_compaction() -> None:
    cache = long_cache()
    halves = stored(cache)
    for _ in range(16):
        fill(cache, 0, 1024)
        fill(cache, 1, 1024)
    assert resident(*halves) >= 128 * MIB
    cache.remove(0, 0)
    while cache.compact(512):
        pass
    assert cache.provided_bytes == 16384 * 4096
    assert 64 * MIB <= resident(*halves) < 72 * MIB
    assert (cache.layer(0).view().keys.read(cache.cells.cells(1)) == 2).all()
    cache.remove(1, 0)
    assert not cache.compact()
    assert resident(*halves) <= FIRST_STEP * 4096
    cache.close()


@pytest.mark.process_memory
def test_closing_returns_all_memory() -> None:
    cache = long_cache()
    for _ in range(8):
        fill(cache, 0, 1024)
    full = psutil.Process().memory_info().rss
    cache.close()
    del cache
    assert psutil.Process().memory_info().rss < full - 28 * MIB


@RETURNED
def test_returned_cells_read_as_zero_and_the_rest_is_kept() -> None:
    storage = KVStorage(OPS, {0: KVShape(1, 8, 8)}, 4096, F16_TYPES)
    keys = storage.layers[0].keys
    storage.provide(4096)
    keys.write(np.arange(4096), np.ones((4096, 1, 8)))
    storage.shrink(700)
    assert storage.provided == 1024
    assert (keys.read(np.arange(1024)) == 1).all()
    assert (keys.read(np.arange(2048, 4096)) == 0).all()


def test_copying_reads_everything_before_it_writes() -> None:
    storage = KVStorage(OPS, {0: KVShape(1, 1, 1)}, 4, F16_TYPES)
    keys = storage.layers[0].keys
    keys.write(np.arange(4), np.arange(4).reshape(4, 1, 1))
    storage.copy(np.array([1, 2, 0]), np.array([0, 1, 2]))
    assert keys.read(np.arange(4)).reshape(-1).tolist() == [1, 2, 0, 3]


@pytest.mark.slow
@pytest.mark.process_memory
@pytest.mark.parametrize("steps", [3_000, pytest.param(100_000, marks=pytest.mark.thorough)])
def test_many_steps_take_no_more_memory_than_few(steps: int) -> None:
    """Sequences come and go, slide, share, are cut and truncated; none of it leaves anything behind."""
    how = {"sequences": 2, "context": 256, "shift": lambda *_: None}
    shape = KVShape(1, 8, 8)
    sliding, causal = SlidingCache(OPS, {0: shape}, window=8, **how), CausalCache(OPS, {0: shape}, **how)
    recurrent = RecurrentCache(OPS, {1: {"state": (8,)}}, sequences=2, checkpoints=2)
    hybrid = WrapperCache(causal, recurrent)
    rows, state = np.zeros((2, 1, 8), np.float32), np.zeros((1, 8), np.float32)

    def run(count: int) -> None:
        for step in range(count):
            cache = (sliding, hybrid)[step % 2]
            cache.start_forward(Batch.of([0, 0], [cache.length(0), cache.length(1)], [0, 1], []))
            cache.layer(0).put(rows, rows)
            if cache is hybrid:
                layer = hybrid.state(1)
                for _, _, _, target in stretches(layer.slots):
                    layer.states["state"].write(np.array([target]), state)
            if step % 100 > 97:
                source, target = step // 100 % 2, (step // 100 + 1) % 2
                if cache is sliding:
                    sliding.remove(source, 0, 5)
                else:
                    hybrid.remove(source, hybrid.resume_point(source, hybrid.length(source) - 3))
                cache.copy_prefix(source, target, 10**6)
                cache.compact()
                for s in range(2):
                    if cache.length(s) > 200:
                        cache.remove(s, 0)

    run(1000)
    before, provided = psutil.Process().memory_info().rss, sliding.provided_bytes + hybrid.provided_bytes
    run(steps)
    assert sliding.provided_bytes + hybrid.provided_bytes <= provided
    assert psutil.Process().memory_info().rss - before < 2 * MIB
    sliding.cells.check()
    causal.cells.check()
    recurrent.check()
