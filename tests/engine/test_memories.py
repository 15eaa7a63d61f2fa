"""What finished requests leave behind, who shares it, and what goes first when room is needed.

Scenarios of the specification by number. There a prompt is looked for in as many slots as requests can run,
by one of two policies; here a tree knows all that is remembered, which is more, and any of it can be shared.
A request for which there is no slot is an error there (scenario 197) and waits here. A removal of an end
cannot fail here: the cache is asked first where the sequence can be resumed (scenario 202).
"""

from __future__ import annotations

import pytest

from puna.engine.memories import Memories, Memory
from puna.errors import CacheFileError, CacheFullError
from puna.kvcache.cache import Cache
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.sliding import SlidingCache
from puna.model.input import Batch

SHAPES = [KVShape(1, 4, 4)]


class World:
    """A cache without a model, and its memories."""

    def __init__(self, rows: int = 4, cache: Cache | None = None) -> None:
        self.cache = cache or CausalCache(SHAPES, sequences=rows, context=64, capacity=200)
        self.memories = Memories(self.cache, rows)

    def begin(self, keys: list, *, come: int | None = None) -> tuple[Memory, int]:
        """A request with the prompt `keys` that runs, evaluated up to `come`, and how much it shared."""
        found = self.memories.find(keys, len(keys) - 1)
        memory = self.memories.take(found.memory, found.count)
        shared = memory.evaluated
        self.memories.follow(memory, keys)
        self.evaluate(memory, (len(keys) if come is None else come) - shared)
        return memory, shared

    def evaluate(self, memory: Memory, count: int) -> None:
        begin = memory.evaluated
        if count > 0:
            positions = list(range(begin, begin + count))
            self.cache.start_forward(Batch.of([0] * count, positions, [memory.row] * count, []))
            memory.evaluated += count

    def finished(self, keys: list) -> Memory:
        memory, _ = self.begin(keys)
        self.memories.rest(memory, keys)
        return memory

    def free(self) -> int:
        assert isinstance(self.cache, CausalCache)
        self.cache.cells.check()
        return self.cache.cells.free


@pytest.mark.scenario(191)
def test_where_nothing_is_remembered_all_is_evaluated() -> None:
    world = World()
    memory, shared = world.begin([1])
    assert (shared, memory.evaluated) == (0, 1)


@pytest.mark.scenario(192, 194, 196)
def test_the_longest_match_is_shared_whoever_holds_it() -> None:
    world = World()
    short = world.finished([1])
    long, _ = world.begin([1, 2, 3])  # goes on in the first, and runs
    assert long.row == short.row
    memory, shared = world.begin([1, 2, 9])
    assert (memory.row != long.row, shared) == (True, 2)


@pytest.mark.scenario(198)
def test_a_continued_conversation_needs_no_second_row() -> None:
    world = World()
    first = world.finished([1, 2])
    second, shared = world.begin([1, 2, 3])
    assert (second.row, shared) == (first.row, 2)


@pytest.mark.scenario(188, 199)
def test_an_equal_prompt_leaves_one_input_to_evaluate() -> None:
    world = World()
    world.finished([1, 2])
    assert world.begin([1, 2])[1] == 1


@pytest.mark.scenario(193, 195, 206)
def test_what_differs_is_left_alone_while_there_are_rows() -> None:
    world = World(rows=3)
    conversations = [[1, 2, 3], [1, 2, 4]]  # two that share a system prompt
    for turn in range(4):
        for number, keys in enumerate(conversations):
            memory, shared = world.begin(keys)
            assert shared == (2 if (turn, number) == (0, 1) else len(keys) - 1 if turn else 0)
            keys.append(10 * turn + number)
            world.evaluate(memory, 1)
            world.memories.rest(memory, keys)
            keys.append(5)
    assert world.begin([8, 8])[1] == 0
    assert all(world.memories.find(keys, 99).count == len(keys) - 1 for keys in conversations)


def test_the_least_recently_used_goes_when_rows_run_out() -> None:
    world = World(rows=3)
    for keys in ([1, 1], [2, 2], [3, 3]):
        world.finished(keys)
    world.begin([1, 1])  # used again, and running
    world.begin([4, 4])
    counts = [world.memories.find([key, key, 0], 2).count for key in (1, 2, 3, 4)]
    assert counts == [2, 0, 2, 2]


def test_a_beginning_of_another_gives_its_row_first() -> None:
    world = World(rows=3)
    world.finished([9, 9])
    old, _ = world.begin([1, 2])
    new, _ = world.begin([1, 2, 3])
    world.memories.rest(new, [1, 2, 3])
    world.memories.rest(old, [1, 2])
    world.begin([5, 5])
    assert world.memories.find([9, 9, 0], 2).count == 2
    assert world.memories.find([1, 2, 3, 0], 3).count == 3


def test_leaves_are_evicted_in_order_of_use_and_what_they_share_stays() -> None:
    world = World(rows=8)
    prefix = list(range(100, 120))
    for number in range(4):
        world.finished([*prefix, *[number] * 10])
    assert world.free() == 200 - 20 - 4 * 10
    assert world.memories.evict()
    assert world.free() == 200 - 20 - 3 * 10
    assert [world.memories.find([*prefix, number, 0], 99).count for number in range(4)] == [20, 21, 21, 21]
    while world.memories.evict():
        pass
    assert world.free() == 200


def test_what_was_evaluated_twice_goes_in_order_of_use_too() -> None:
    world = World(rows=8)
    keys = list(range(40))
    world.finished(keys)
    world.finished(list(range(50, 80)))
    twin = world.memories.take()  # with cells of its own, as after a prompt that could not be resumed
    world.memories.follow(twin, keys)
    world.evaluate(twin, 40)
    world.memories.rest(twin, keys)
    free = world.free()
    assert world.memories.evict()
    assert world.free() == free + 40
    assert world.memories.find([*keys, 0], 40).count == 40
    assert world.memories.find([*range(50, 80), 0], 30).count == 30


def test_what_is_spared_is_not_evicted() -> None:
    world = World()
    kept = world.finished([1, 2])
    assert not world.memories.evict(spared=kept)
    assert world.memories.evict()


def test_with_one_row_left_the_match_is_cut_back() -> None:  # what one slot would do
    world = World(rows=1)
    only = world.finished([1, 2, 3, 4])
    memory, shared = world.begin([1, 2, 9])
    assert (memory.row, shared) == (only.row, 2)
    assert world.free() == 200 - 3


def test_what_a_running_request_will_have_evaluated_is_said() -> None:
    world = World()
    running, _ = world.begin([1, 2, 3, 4, 5, 6], come=2)
    found = world.memories.find([1, 2, 3, 4, 9], 4)
    assert (found.memory, found.count) == (running, 2)
    assert (found.coming, found.coming_count) == (running, 4)
    world.evaluate(running, 2)
    found = world.memories.find([1, 2, 3, 4, 9], 4)
    assert (found.count, found.coming) == (4, None)


def test_what_another_has_already_is_not_said_to_be_coming() -> None:
    world = World()
    world.finished([1, 2, 3, 4])
    world.memories.take()
    slow = world.memories.take()
    world.memories.follow(slow, [1, 2, 3, 4, 5])
    found = world.memories.find([1, 2, 3, 4, 9], 4)
    assert found.coming_count <= found.count == 4


def test_generated_inputs_can_be_shared_too() -> None:
    world = World()
    memory, _ = world.begin([1, 2])
    for key in (3, 4):
        world.memories.extend(memory, key)
        world.evaluate(memory, 1)
    assert world.memories.find([1, 2, 3, 4, 5], 4).count == 4


def test_what_is_unfollowed_is_shared_no_more() -> None:
    world = World()
    memory, _ = world.begin([1, 2, 3, 4])
    world.memories.unfollow(memory)
    assert world.memories.find([1, 2, 3], 2).count == 0
    world.memories.rest(memory, [1, 2])  # only so much of it may be
    assert world.memories.find([1, 2, 3], 2).count == 2
    assert world.free() == 200 - 2


def test_what_was_never_evaluated_is_not_remembered() -> None:
    world = World(rows=1)
    memory, _ = world.begin([1, 2, 3], come=0)
    world.memories.rest(memory, [1, 2, 3])
    assert world.memories.find([1, 2, 3], 2).count == 0
    assert world.begin([4])[0].row == memory.row


@pytest.mark.scenario(120, 121)
def test_images_are_told_apart() -> None:
    world = World()
    world.finished([1, (0, 77), 0, 0, 5])
    assert world.memories.find([1, (0, 78), 0, 0, 5], 5).count == 1
    assert world.memories.find([1, (0, 77), 0, 0, 6], 5).count == 4


@pytest.mark.scenario(200)
@pytest.mark.parametrize(("length", "shared"), [(8, 8), (20, 0)])
def test_a_window_that_is_gone_cannot_be_shared(length: int, shared: int) -> None:
    cache = SlidingCache(SHAPES, sequences=4, context=64, window=6)
    world = World(cache=cache)
    memory, _ = world.begin(list(range(length)))
    world.memories.rest(memory, list(range(length)))
    world.evaluate(world.memories.take(), 1)  # a pass starts, and what nobody sees goes
    assert world.memories.find([*range(8), 99], 8).count == shared


def test_where_a_prompt_ended_stays_although_its_window_slides_on() -> None:
    cache = SlidingCache(SHAPES, sequences=4, context=64, window=6)
    world = World(cache=cache)
    memory, _ = world.begin(list(range(20)))
    for _ in range(2):  # a second mark would be the same again
        world.memories.mark(memory, list(range(20)))
    for key in range(20, 40):
        world.memories.extend(memory, key)
        world.evaluate(memory, 1)
    world.memories.rest(memory, list(range(40)))
    assert [world.memories.find([*range(count), 99], count).count for count in (19, 20, 30, 40)] == [
        19,
        20,
        20,
        40,
    ]
    assert len({world.memories.take().row for _ in range(2)} | {memory.row}) == 3
    cache.cells.check()


def test_a_mark_stays_for_all_who_begin_there_and_goes_when_it_was_not_used_for_long() -> None:
    cache = SlidingCache(SHAPES, sequences=4, context=64, window=6)
    world = World(rows=4, cache=cache)
    prefix = list(range(20))
    first, _ = world.begin(prefix)
    world.memories.mark(first, prefix)
    world.memories.rest(first, prefix)
    for number in range(6):
        memory, shared = world.begin([*prefix, 50 + number, *range(100, 110)])
        assert shared == 20
        world.memories.rest(memory, [*prefix, 50 + number, *range(100, 110)])
    for number in range(4):
        world.finished([200 + number, 5])
    assert world.memories.find([*prefix, 99], 20).shared == 0


@pytest.mark.parametrize(
    ("prompt", "used"), [([0, 50], False), ([0, 1, 2, 3], True), ([0, 1, 2, 3, 4], True)]
)
def test_a_mark_of_which_only_a_beginning_is_shared_was_not_used(prompt: list[int], used: bool) -> None:
    world = World(cache=SlidingCache(SHAPES, sequences=4, context=64, window=6))
    marked, _ = world.begin([0, 1, 2, 3])
    world.memories.mark(marked, [0, 1, 2, 3])
    world.memories.drop(marked)
    world.finished([7, 8, 9])
    _, shared = world.begin(prompt)
    assert shared == min(len(prompt) - 1, 4)
    assert world.memories.evict()
    assert world.memories.find([7, 8, 9, 1], 3).count == (0 if used else 3)


def test_of_several_that_match_the_one_that_still_has_the_window_is_found() -> None:
    cache = SlidingCache(SHAPES, sequences=6, context=64, window=6)
    world = World(rows=6, cache=cache)
    for tail in range(3):
        world.memories.rest(*_grown(world, [*range(8), *[50 + tail] * 20]))
    near = world.finished([*range(8), 30])
    world.evaluate(world.memories.take(), 1)
    found = world.memories.find([*range(8), 99], 8)
    assert (found.memory, found.count) == (near, 8)


def _grown(world: World, keys: list) -> tuple[Memory, list]:
    memory, _ = world.begin(keys)
    return memory, keys


@pytest.mark.scenario(202)
def test_a_recurrent_state_is_shared_where_it_was_kept() -> None:
    cache = RecurrentCache({0: {"state": (2,)}}, sequences=4)
    world = World(cache=cache)
    memory, _ = world.begin(list(range(40)))
    world.memories.rest(memory, list(range(40)))
    assert world.begin([*range(40), 50])[1] == 40
    assert world.begin([*range(30), 60])[1] == 0  # no state was kept before the end of the prompt


# --- what was saved -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["causal", "sliding", "recurrent"])
def test_what_was_saved_is_shared_elsewhere_as_if_it_had_been_evaluated_there(kind: str) -> None:
    def world() -> World:
        return World(
            cache={
                "causal": lambda: None,
                "sliding": lambda: SlidingCache(SHAPES, sequences=4, context=64, window=6),
                "recurrent": lambda: RecurrentCache({0: {"state": (2,)}}, sequences=4),
            }[kind]()
        )

    here, there = world(), world()
    keys = list(range(30))
    here.finished(keys)
    here.finished([50, 51])
    saved = here.memories.saved(keys)
    assert saved is not None
    there.finished([0, 1, 2])
    there.memories.adopt(saved, keys)
    assert there.begin([*keys, 99])[1] == 30
    assert here.memories.saved([0, 1]) is None  # longer ones know more than that
    assert here.memories.saved([*keys, 99]) is None


def test_what_is_known_already_is_not_adopted_again() -> None:
    world = World()
    world.finished([1, 2, 3])
    saved = world.memories.saved([1, 2, 3])
    assert saved is not None
    before = world.free()
    world.memories.adopt(saved, [1, 2, 3])
    assert world.free() == before


def test_what_is_adopted_takes_the_room_of_what_was_used_least_recently() -> None:
    keys = list(range(100, 160))
    source = World()
    source.finished(keys)
    saved = source.memories.saved(keys)
    assert saved is not None
    world = World(rows=5)
    for number in range(4):
        world.finished([number] * 45)
    world.memories.adopt(saved, keys)
    assert world.memories.find([*keys, 0], 60).count == 60
    assert [world.memories.find([number] * 46, 45).count for number in range(4)] == [0, 45, 45, 45]
    while world.memories.evict():
        pass
    assert world.free() == 200


def test_without_room_beside_running_requests_nothing_is_adopted() -> None:
    source = World()
    source.finished(list(range(60)))
    saved = source.memories.saved(list(range(60)))
    assert saved is not None
    rows = World(rows=1)
    rows.begin([7])
    with pytest.raises(CacheFullError, match="all places are taken"):
        rows.memories.adopt(saved, list(range(60)))
    cells = World()
    for number in range(3):
        cells.begin([number] * 50)
    with pytest.raises(CacheFullError):
        cells.memories.adopt(saved, list(range(60)))
    assert cells.free() == 50
    cells.begin([9] * 20)  # its row is free


def test_tokens_that_are_not_those_saved_are_refused() -> None:
    source, world = World(), World()
    source.finished([1, 2, 3])
    saved = source.memories.saved([1, 2, 3])
    assert saved is not None
    with pytest.raises(CacheFileError, match="3 positions of 4 tokens; the file is damaged"):
        world.memories.adopt(saved, [1, 2, 3, 4])
    assert world.free() == 200
    assert world.memories.find([1, 2, 3, 4], 4).count == 0
