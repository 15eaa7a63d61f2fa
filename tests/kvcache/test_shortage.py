"""Caches for which a device has no more memory: a pass that cannot begin changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from puna.batch import Batch
from puna.gguf import GGMLType
from puna.kvcache import storage
from puna.kvcache.cache import Cache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.types import F16_TYPES
from puna.model.load import LoadedModel, load_model
from puna.ops.host import HostStorage
from puna.ops.reference import Reference
from tests.engine.conftest import KINDS
from tests.model.divisions import divided


class Full(Reference):
    """A device that has memory for `rows` rows of each storage."""

    rows = 1 << 30

    def storage(self, kind: GGMLType, rows: int, row_shape: tuple[int, ...]) -> HostStorage:
        device = self

        class Storage(HostStorage):
            def provide(self, rows: int) -> None:
                if rows > device.rows:
                    raise MemoryError("the device is out of memory")
                super().provide(rows)

        return Storage(kind, rows, row_shape)


def test_states_that_cannot_be_restored_leave_an_empty_sequence() -> None:
    device = Full()
    cache = RecurrentCache(device, {0: {"state": (2,)}}, sequences=2)
    start(cache, 0, 3)
    saved = cache.save(0)
    device.rows = 0
    for _ in range(3):
        with pytest.raises(MemoryError):
            cache.plan_restore(1, saved)()
        assert [cache.length(sequence) for sequence in (0, 1)] == [3, 0]
        cache.check()
    device.rows = 1 << 30
    cache.plan_restore(1, saved)()
    start(cache, 1, 2)
    assert cache.length(1) == 5
    cache.check()


def start(cache: Cache, sequence: int, count: int) -> None:
    """Begin a pass over more inputs of a sequence."""
    begin = cache.length(sequence)
    cache.start_forward(Batch.of([0] * count, [*range(begin, begin + count)], [sequence] * count, []))


def read(loaded: LoadedModel, cache: Any, count: int) -> np.ndarray:
    begin = cache.length(0)
    tokens = [3 + 5 * position % 50 for position in range(begin, begin + count)]
    batch = Batch.of(tokens, [*range(begin, begin + count)], [0] * count, [count - 1])
    cache.start_forward(batch)
    return loaded.ops.numpy(loaded.model.forward(batch.on(loaded.ops), cache)).copy()


def whole(path: Path) -> tuple[LoadedModel, Full]:
    device = Full()
    return load_model(path, ops=device), device


def last_stage(path: Path) -> tuple[LoadedModel, Full]:
    device = Full()
    return divided(path, [1], [Reference(), device]), device


@pytest.mark.parametrize("place", [whole, last_stage])
@pytest.mark.parametrize("kind", ["plain", "windowed", "recurrent"])
def test_a_pass_that_cannot_begin_changes_nothing(
    kind: str,
    place: Callable[[Path], tuple[LoadedModel, Full]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage, "FIRST_STEP", 16)
    loaded, device = place(KINDS[kind](tmp_path / "model.gguf"))
    caches = [loaded.make_cache(sequences=2, context=128, types=F16_TYPES) for _ in range(2)]
    for cache in caches:
        read(loaded, cache, 9)
    cache, other = caches
    counts, device.rows = cache.counts(), 0
    for _ in range(2):
        with pytest.raises(MemoryError):
            read(loaded, cache, 40)
        assert cache.length(0) == 9
        assert [each.used for each in cache.counts()] == [each.used for each in counts]
    device.rows = 1 << 30
    np.testing.assert_array_equal(read(loaded, cache, 40), read(loaded, other, 40))
