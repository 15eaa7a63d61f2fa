"""Entries of a prefix cache, saved and restored elsewhere."""

from __future__ import annotations

import pytest

from puna.errors import CacheFileError, CacheFullError
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.windows import SlidingCache
from tests.engine.prefix_world import SHAPES, World
from tests.kvcache.probe import OPS


@pytest.mark.parametrize("kind", ["causal", "sliding", "recurrent"])
def test_a_saved_prefix_is_shared_in_another_cache(kind: str) -> None:
    def world() -> World:
        return World(
            cache={
                "causal": lambda: None,
                "sliding": lambda: SlidingCache(OPS, SHAPES, sequences=4, context=64, window=6),
                "recurrent": lambda: RecurrentCache(OPS, {0: {"state": (2,)}}, sequences=4),
            }[kind]()
        )

    here, there = world(), world()
    keys = list(range(30))
    here.finished(keys)
    here.finished([50, 51])
    saved = here.prefix_cache.snapshot(keys)
    assert saved is not None
    there.finished([0, 1, 2])
    there.prefix_cache.restore(saved, keys)
    assert there.begin([*keys, 99])[1] == 30
    assert here.prefix_cache.snapshot([0, 1]) is None  # a longer entry covers it
    assert here.prefix_cache.snapshot([*keys, 99]) is None


def test_a_cached_prompt_is_not_restored_again() -> None:
    world = World()
    world.finished([1, 2, 3])
    saved = world.prefix_cache.snapshot([1, 2, 3])
    assert saved is not None
    before = world.free()
    world.prefix_cache.restore(saved, [1, 2, 3])
    assert world.free() == before


def test_a_restored_entry_evicts_the_least_recently_used() -> None:
    keys = list(range(100, 160))
    source = World()
    source.finished(keys)
    saved = source.prefix_cache.snapshot(keys)
    assert saved is not None
    world = World(rows=5)
    for number in range(4):
        world.finished([number] * 45)
    world.prefix_cache.restore(saved, keys)
    assert world.prefix_cache.find([*keys, 0], 60).count == 60
    assert [world.prefix_cache.find([number] * 46, 45).count for number in range(4)] == [0, 45, 45, 45]
    while world.prefix_cache.evict():
        pass
    assert world.free() == 200


def test_restoring_needs_room_beside_running_requests() -> None:
    source = World()
    source.finished(list(range(60)))
    saved = source.prefix_cache.snapshot(list(range(60)))
    assert saved is not None
    rows = World(rows=1)
    rows.begin([7])
    with pytest.raises(CacheFullError, match="use all cache sequences"):
        rows.prefix_cache.restore(saved, list(range(60)))
    cells = World()
    for number in range(3):
        cells.begin([number] * 50)
    with pytest.raises(CacheFullError):
        cells.prefix_cache.restore(saved, list(range(60)))
    assert cells.free() == 50
    cells.begin([9] * 20)  # its row is free


def test_tokens_that_differ_from_the_saved_ones_are_refused() -> None:
    source, world = World(), World()
    source.finished([1, 2, 3])
    saved = source.prefix_cache.snapshot([1, 2, 3])
    assert saved is not None
    with pytest.raises(CacheFileError, match="3 positions of 4 tokens; the file is damaged"):
        world.prefix_cache.restore(saved, [1, 2, 3, 4])
    assert world.free() == 200
    assert world.prefix_cache.find([1, 2, 3, 4], 4).count == 0
