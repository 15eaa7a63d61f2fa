"""Entries of finished requests: sharing, and eviction when space is needed."""

from __future__ import annotations

import pytest

from puna.engine.prefix_cache import PrefixEntry
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.windows import SlidingCache
from tests.engine.prefix_world import SHAPES, World
from tests.kvcache.probe import OPS


def test_an_empty_cache_has_no_match() -> None:
    world = World()
    entry, shared = world.begin([1])
    assert (shared, entry.evaluated) == (0, 1)


def test_the_longest_match_of_any_entry_is_shared() -> None:
    world = World()
    short = world.finished([1])
    long, _ = world.begin([1, 2, 3])  # continues the first, and is running
    assert long.row == short.row
    entry, shared = world.begin([1, 2, 9])
    assert (entry.row != long.row, shared) == (True, 2)


def test_a_continued_conversation_needs_no_second_row() -> None:
    world = World()
    first = world.finished([1, 2])
    second, shared = world.begin([1, 2, 3])
    assert (second.row, shared) == (first.row, 2)


def test_an_equal_prompt_leaves_one_input_to_evaluate() -> None:
    world = World()
    world.finished([1, 2])
    assert world.begin([1, 2])[1] == 1


def test_diverging_entries_are_kept_while_rows_are_free() -> None:
    world = World(rows=3)
    conversations = [[1, 2, 3], [1, 2, 4]]  # two that share a system prompt
    for turn in range(4):
        for number, keys in enumerate(conversations):
            entry, shared = world.begin(keys)
            assert shared == (2 if (turn, number) == (0, 1) else len(keys) - 1 if turn else 0)
            keys.append(10 * turn + number)
            world.evaluate(entry, 1)
            world.prefix_cache.release(entry, keys)
            keys.append(5)
    assert world.begin([8, 8])[1] == 0
    assert all(world.prefix_cache.find(keys, 99).count == len(keys) - 1 for keys in conversations)


def test_the_least_recently_used_is_evicted_when_rows_run_out() -> None:
    world = World(rows=3)
    for keys in ([1, 1], [2, 2], [3, 3]):
        world.finished(keys)
    world.begin([1, 1])  # used again, and running
    world.begin([4, 4])
    counts = [world.prefix_cache.find([key, key, 0], 2).count for key in (1, 2, 3, 4)]
    assert counts == [2, 0, 2, 2]


def test_a_prefix_of_another_entry_is_evicted_first() -> None:
    world = World(rows=3)
    world.finished([9, 9])
    old, _ = world.begin([1, 2])
    new, _ = world.begin([1, 2, 3])
    world.prefix_cache.release(new, [1, 2, 3])
    world.prefix_cache.release(old, [1, 2])
    world.begin([5, 5])
    assert world.prefix_cache.find([9, 9, 0], 2).count == 2
    assert world.prefix_cache.find([1, 2, 3, 0], 3).count == 3


def test_leaves_are_evicted_in_order_of_use_and_shared_cells_stay() -> None:
    world = World(rows=8)
    prefix = list(range(100, 120))
    for number in range(4):
        world.finished([*prefix, *[number] * 10])
    assert world.free() == 200 - 20 - 4 * 10
    assert world.prefix_cache.evict()
    assert world.free() == 200 - 20 - 3 * 10
    assert [world.prefix_cache.find([*prefix, number, 0], 99).count for number in range(4)] == [
        20,
        21,
        21,
        21,
    ]
    while world.prefix_cache.evict():
        pass
    assert world.free() == 200


def test_redundant_entries_are_evicted_in_order_of_use() -> None:
    world = World(rows=8)
    keys = list(range(40))
    world.finished(keys)
    world.finished(list(range(50, 80)))
    twin = world.prefix_cache.acquire()  # with its own cells, as after a prompt that could not be resumed
    world.prefix_cache.index(twin, keys)
    world.evaluate(twin, 40)
    world.prefix_cache.release(twin, keys)
    free = world.free()
    assert world.prefix_cache.evict()
    assert world.free() == free + 40
    assert world.prefix_cache.find([*keys, 0], 40).count == 40
    assert world.prefix_cache.find([*range(50, 80), 0], 30).count == 30


def test_an_entry_can_be_exempt_from_eviction() -> None:
    world = World()
    kept = world.finished([1, 2])
    assert not world.prefix_cache.evict(except_for=kept)
    assert world.prefix_cache.evict()


def test_with_one_row_left_the_match_is_cut_back() -> None:  # as with a single slot
    world = World(rows=1)
    only = world.finished([1, 2, 3, 4])
    entry, shared = world.begin([1, 2, 9])
    assert (entry.row, shared) == (only.row, 2)
    assert world.free() == 200 - 3


def test_a_match_names_the_entry_that_is_still_evaluating() -> None:
    world = World()
    running, _ = world.begin([1, 2, 3, 4, 5, 6], come=2)
    found = world.prefix_cache.find([1, 2, 3, 4, 9], 4)
    assert (found.entry, found.count) == (running, 2)
    assert (found.pending, found.pending_count) == (running, 4)
    world.evaluate(running, 2)
    found = world.prefix_cache.find([1, 2, 3, 4, 9], 4)
    assert (found.count, found.pending) == (4, None)


def test_a_match_has_no_pending_entry_for_evaluated_inputs() -> None:
    world = World()
    world.finished([1, 2, 3, 4])
    world.prefix_cache.acquire()
    slow = world.prefix_cache.acquire()
    world.prefix_cache.index(slow, [1, 2, 3, 4, 5])
    found = world.prefix_cache.find([1, 2, 3, 4, 9], 4)
    assert found.pending_count <= found.count == 4


def test_generated_inputs_can_be_shared_too() -> None:
    world = World()
    entry, _ = world.begin([1, 2])
    for key in (3, 4):
        world.prefix_cache.extend(entry, key)
        world.evaluate(entry, 1)
    assert world.prefix_cache.find([1, 2, 3, 4, 5], 4).count == 4


def test_an_entry_that_is_not_indexed_is_not_shared() -> None:
    world = World()
    entry, _ = world.begin([1, 2, 3, 4])
    world.prefix_cache.unindex(entry)
    assert world.prefix_cache.find([1, 2, 3], 2).count == 0
    world.prefix_cache.release(entry, [1, 2])  # only this much may be shared
    assert world.prefix_cache.find([1, 2, 3], 2).count == 2
    assert world.free() == 200 - 2


def test_unevaluated_inputs_are_not_remembered() -> None:
    world = World(rows=1)
    entry, _ = world.begin([1, 2, 3], come=0)
    world.prefix_cache.release(entry, [1, 2, 3])
    assert world.prefix_cache.find([1, 2, 3], 2).count == 0
    assert world.begin([4])[0].row == entry.row


def test_different_images_are_not_shared() -> None:
    world = World()
    world.finished([1, (0, 77), 0, 0, 5])
    assert world.prefix_cache.find([1, (0, 78), 0, 0, 5], 5).count == 1
    assert world.prefix_cache.find([1, (0, 77), 0, 0, 6], 5).count == 4


@pytest.mark.parametrize(("length", "shared"), [(8, 8), (20, 0)])
def test_a_forgotten_window_cannot_be_shared(length: int, shared: int) -> None:
    cache = SlidingCache(OPS, SHAPES, sequences=4, context=64, window=6)
    world = World(cache=cache)
    entry, _ = world.begin(list(range(length)))
    world.prefix_cache.release(entry, list(range(length)))
    world.evaluate(world.prefix_cache.acquire(), 1)  # a pass starts and drops what no row sees
    assert world.prefix_cache.find([*range(8), 99], 8).count == shared


def test_the_end_of_a_prompt_stays_resumable_after_its_window_slides() -> None:
    cache = SlidingCache(OPS, SHAPES, sequences=4, context=64, window=6)
    world = World(cache=cache)
    entry, _ = world.begin(list(range(20)))
    for _ in range(2):  # a second mark at the same place adds nothing
        world.prefix_cache.checkpoint(entry, list(range(20)))
    for key in range(20, 40):
        world.prefix_cache.extend(entry, key)
        world.evaluate(entry, 1)
    world.prefix_cache.release(entry, list(range(40)))
    assert [world.prefix_cache.find([*range(count), 99], count).count for count in (19, 20, 30, 40)] == [
        19,
        20,
        20,
        40,
    ]
    assert len({world.prefix_cache.acquire().row for _ in range(2)} | {entry.row}) == 3
    cache.cells.check()


def test_a_checkpoint_serves_every_prompt_that_begins_there_until_it_is_evicted() -> None:
    cache = SlidingCache(OPS, SHAPES, sequences=4, context=64, window=6)
    world = World(rows=4, cache=cache)
    prefix = list(range(20))
    first, _ = world.begin(prefix)
    world.prefix_cache.checkpoint(first, prefix)
    world.prefix_cache.release(first, prefix)
    for number in range(6):
        entry, shared = world.begin([*prefix, 50 + number, *range(100, 110)])
        assert shared == 20
        world.prefix_cache.release(entry, [*prefix, 50 + number, *range(100, 110)])
    for number in range(4):
        world.finished([200 + number, 5])
    assert world.prefix_cache.find([*prefix, 99], 20).shared == 0


@pytest.mark.parametrize(
    ("prompt", "used"), [([0, 50], False), ([0, 1, 2, 3], True), ([0, 1, 2, 3, 4], True)]
)
def test_reusing_a_part_of_a_checkpoint_does_not_count_as_use(prompt: list[int], used: bool) -> None:
    world = World(cache=SlidingCache(OPS, SHAPES, sequences=4, context=64, window=6))
    marked, _ = world.begin([0, 1, 2, 3])
    world.prefix_cache.checkpoint(marked, [0, 1, 2, 3])
    world.prefix_cache.drop(marked)
    world.finished([7, 8, 9])
    _, shared = world.begin(prompt)
    assert shared == min(len(prompt) - 1, 4)
    assert world.prefix_cache.evict()
    assert world.prefix_cache.find([7, 8, 9, 1], 3).count == (0 if used else 3)


def test_among_several_matches_the_one_with_its_window_is_found() -> None:
    cache = SlidingCache(OPS, SHAPES, sequences=6, context=64, window=6)
    world = World(rows=6, cache=cache)
    for tail in range(3):
        world.prefix_cache.release(*_grown(world, [*range(8), *[50 + tail] * 20]))
    near = world.finished([*range(8), 30])
    world.evaluate(world.prefix_cache.acquire(), 1)
    found = world.prefix_cache.find([*range(8), 99], 8)
    assert (found.entry, found.count) == (near, 8)


def _grown(world: World, keys: list) -> tuple[PrefixEntry, list]:
    entry, _ = world.begin(keys)
    return entry, keys


def test_a_recurrent_state_is_shared_where_it_was_kept() -> None:
    cache = RecurrentCache(OPS, {0: {"state": (2,)}}, sequences=4)
    world = World(cache=cache)
    entry, _ = world.begin(list(range(40)))
    world.prefix_cache.release(entry, list(range(40)))
    assert world.begin([*range(40), 50])[1] == 40
    assert world.begin([*range(30), 60])[1] == 0  # no state was kept before the end of the prompt


# --- saved prefixes -----------------------------------------------------------------------------
