"""Several caches as one, and the encoder's cache."""

from __future__ import annotations

import pytest

from puna.batch import Batch
from puna.errors import CacheFullError, NotSupportedError
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.encoder import EncoderCache
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.windows import SlidingCache
from puna.kvcache.wrapper import WrapperCache
from puna.ops import Array
from tests.kvcache.probe import NUMBERS, OPS, add_shift, column, seen_keys

ONE = KVShape(1, 1, 1)


def two(
    sequences: int = 2, context: int = 16, capacity: int | None = None, shift=add_shift, window: int = 3
) -> WrapperCache:
    """Return a cache whose layers 0 and 1 slide and whose layer 2 is global, with `capacity` cells."""
    how = {"sequences": sequences, "context": context, "types": NUMBERS}
    return WrapperCache(
        SlidingCache(OPS, {0: ONE, 1: ONE}, window=window, shift=add_shift, **how),
        CausalCache(OPS, {2: ONE}, capacity=capacity, shift=shift, **how),
    )


def store(
    cache: WrapperCache, sequences: list[int], positions: list[int], data: list[float]
) -> dict[int, list]:
    cache.start_forward(Batch.of([0] * len(data), positions, sequences, []))
    values = column(data)
    for index in cache.layers:
        cache.layer(index).put(values, values)
    return {index: seen_keys(cache.layer(index).view()) for index in cache.layers}


def books(cache: WrapperCache) -> list[list[list[int]]]:
    return [[inner.cells.cells(s).tolist() for s in range(2)] for inner in cache.caches]


def test_a_pass_refused_by_one_cache_leaves_all_unchanged() -> None:
    cache = two(capacity=6)
    store(cache, [0] * 5, list(range(5)), [0.0] * 5)
    before = books(cache)
    with pytest.raises(CacheFullError, match="1 free cells of 6, and 2 are needed"):
        store(cache, [0, 1], [5, 0], [5.0, 10.0])
    assert books(cache) == before  # the sliding cache has not slid either
    assert cache.length(0) == 5
    assert store(cache, [0], [5], [5.0]) == {0: [[0, 0, 5]], 1: [[0, 0, 5]], 2: [[0, 0, 0, 0, 0, 5]]}


def test_another_model_reads_what_precedes_its_rows_and_changes_nothing() -> None:
    cache = two(capacity=8)
    store(cache, [0] * 5 + [1, 1], [0, 1, 2, 3, 4, 0, 1], [0.0, 1.0, 2.0, 3.0, 4.0, 10.0, 11.0])
    before = books(cache)
    windowed, whole = 1, 2
    cache.start_reading([windowed, whole], Batch.of([0, 0], [5, 1], [0, 1], []))
    found = {index: seen_keys(cache.layer(index).view()) for index in (windowed, whole)}
    assert found == {windowed: [[3, 4], [10]], whole: [[0, 1, 2, 3, 4], [10]]}
    with pytest.raises(ValueError, match="given the keys of this pass"):
        cache.layer(0).view()
    with pytest.raises(ValueError, match="does not have"):
        cache.start_reading([whole], Batch.of([0], [6], [0], []))
    assert books(cache) == before
    assert store(cache, [0], [5], [5.0])[whole] == [[0, 1, 2, 3, 4, 5]]


def test_states_cannot_be_read_by_another_model() -> None:
    cache = RecurrentCache(OPS, {0: {"memory": (5,)}}, sequences=1)
    with pytest.raises(NotSupportedError, match="recurrent cache cannot be read"):
        cache.start_reading([0], Batch.of([0], [0], [0], []))


def test_a_layer_may_have_keys_and_a_state() -> None:
    how = {"sequences": 1, "context": 16, "types": NUMBERS}
    states = RecurrentCache(OPS, {0: {"memory": (5,)}}, sequences=1)
    keys = CausalCache(OPS, {0: ONE, 1: ONE}, shift=add_shift, **how)
    cache = WrapperCache(states, keys)
    assert set(cache.layers) == {0, 1}
    assert store(cache, [0, 0], [0, 1], [3.0, 4.0]) == {0: [[3], [3, 4]], 1: [[3], [3, 4]]}
    assert list(cache.state(0).states) == ["memory"]
    sizes = {"sequences": 1, "capacity": 16, "batch": 2}
    mine, theirs = states.layer_bytes(**sizes), keys.layer_bytes(**sizes)
    assert cache.layer_bytes(**sizes) == {0: mine[0] + theirs[0], 1: theirs[1]}


def test_resuming_needs_all_caches() -> None:
    cache = two()
    for position in range(8):
        store(cache, [0], [position], [float(position)])
    assert cache.caches[1].can_resume(0, 3)
    assert not cache.can_resume(0, 3)
    assert cache.resume_point(0, 3) == 0
    assert cache.resume_point(0, 20) == 8
    assert cache.can_resume(0, 7)


def test_a_removal_that_fails_in_one_cache_leaves_all_unchanged() -> None:
    cache = two(shift=None, window=8)
    store(cache, [0] * 4, [0, 1, 2, 3], [0, 1, 2, 3])
    before = books(cache)
    with pytest.raises(NotSupportedError, match="keys cannot be moved"):
        cache.remove(0, 1, 2)
    assert books(cache) == before
    cache.remove(0, 0)
    assert books(cache) == [[[], []], [[], []]]


def test_layers_are_in_the_cache_of_their_type() -> None:
    cache = two()
    assert [list(inner.layers) for inner in cache.caches] == [[0, 1], [2]]
    assert list(cache.layers) == [0, 1, 2]
    with pytest.raises(KeyError):
        cache.caches[0].layer(2)
    seen = store(cache, [0] * 4, [0, 1, 2, 3], [0, 1, 2, 3])
    assert seen[1][3] == [1, 2, 3]
    assert seen[2][3] == [0, 1, 2, 3]


def test_a_layer_can_read_anothers_keys_and_an_unknown_layer_is_an_error() -> None:
    cache = two()
    seen = store(cache, [0], [0], [7.0])
    assert (
        seen_keys(cache.layer(1).view()) == seen[1]
    )  # as read by, say, layer 5, which has no keys of its own
    with pytest.raises(KeyError):
        cache.layer(7)


def test_no_layer_is_in_two_caches() -> None:
    shapes = {0: ONE}
    with pytest.raises(ValueError, match="two caches have a layer 0"):
        WrapperCache(*(CausalCache(OPS, shapes, sequences=1, context=4) for _ in range(2)))


def test_each_layer_is_shifted_by_its_own_rotation() -> None:
    def shift(layer: int, keys: Array, offset: int) -> None:
        if layer != 2:  # layer 2 is stored without rotation
            keys += offset

    cache = two(shift=shift)
    store(cache, [0] * 4, [0, 1, 2, 3], [0, 1, 2, 3])
    cache.remove(0, 0, 2)
    assert store(cache, [0], [2], [9.0]) == {0: [[0, 1, 9]], 1: [[0, 1, 9]], 2: [[2, 3, 9]]}


def test_a_failed_pass_is_undone_in_all() -> None:
    cache = two()
    store(cache, [0], [0], [1.0])
    cache.start_forward(Batch.of([0, 0], [1, 2], [0, 0], []))
    cache.undo_forward()
    assert [inner.length(0) for inner in cache.caches] == [1, 1]


def test_generations_and_sizes_add_up() -> None:
    cache = two()
    assert cache.generation == sum(inner.generation for inner in cache.caches)
    assert cache.allocated_bytes == sum(inner.allocated_bytes for inner in cache.caches)
    assert cache.provided_bytes == 0
    cache.close()
    assert cache.allocated_bytes == 0


def test_compaction_reaches_every_cache() -> None:
    cache = two()
    for position in range(3):
        store(cache, [0, 1], [position] * 2, [position, position + 10])
    while cache.compact(2):
        pass
    assert books(cache)[1] == [[0, 1, 2], [3, 4, 5]]


class Encoder:
    """A cross-attention layer of single numbers; a payload is the list of an image's numbers."""

    def __init__(self, sequences: int = 2, longest: int = 12) -> None:
        self.cache = EncoderCache(
            OPS, {4: ONE}, sequences=sequences, longest=longest, entries=len, types=NUMBERS
        )

    def store(
        self, sequences: list[int], positions: list[int], images: dict[int, list[float]] | None = None
    ) -> list[list[float]]:
        batch = Batch.of([0] * len(positions), positions, sequences, [])
        batch.payloads = list((images or {}).items())
        self.cache.start_forward(batch)
        layer = self.cache.layer(4)
        if batch.payloads:
            data = column([number for _, payload in batch.payloads for number in payload])
            layer.put(data, data)
        return seen_keys(layer.view())


def test_rows_see_the_image_before_them() -> None:
    encoder = Encoder()
    assert encoder.store([0] * 10, list(range(10))) == [[]] * 10
    seen = encoder.store([0] * 5, [10, 11, 12, 13, 14], {3: [1.0, 2.0]})
    assert seen == [[], [], [], [1, 2], [1, 2]]
    assert encoder.cache.images(0) == [13]
    assert encoder.store([0, 1], [15, 0]) == [[1, 2], []]


def test_rows_see_the_last_image_and_those_directly_before_it() -> None:
    # Like transformers' cross-attention mask for Mllama.
    encoder = Encoder()
    seen = encoder.store([0] * 5, [0, 1, 2, 3, 4], {0: [1.0], 2: [2.0, 3.0], 3: [4.0]})
    assert seen == [[1], [1], [2, 3], [2, 3, 4], [2, 3, 4]]


def test_images_are_removed_and_moved_with_their_positions() -> None:
    encoder = Encoder()
    encoder.store([0] * 15, list(range(15)), {13: [1.0, 2.0]})
    encoder.cache.remove(0, 14)
    assert encoder.cache.images(0) == [13]
    encoder.cache.remove(0, 2, 5)
    assert encoder.cache.images(0) == [10]
    assert encoder.cache.length(0) == 11
    encoder.cache.remove(0, 11)
    assert encoder.cache.images(0) == [10]
    encoder.cache.remove(0, 10)
    assert encoder.cache.images(0) == []
    assert encoder.cache.cells.free == 24


def test_removing_an_image_between_others_keeps_theirs() -> None:
    encoder = Encoder()
    encoder.store([0] * 6, list(range(6)), {0: [1.0], 2: [2.0, 3.0], 4: [4.0]})
    encoder.cache.remove(0, 1, 3)
    assert encoder.cache.images(0) == [0, 2]
    assert encoder.store([0], [4]) == [[4]]
    encoder.cache.remove(0, 1)
    assert encoder.store([0], [1]) == [[1]]


def test_prefixes_with_images_are_shared() -> None:
    encoder = Encoder()
    encoder.store([0] * 4, list(range(4)), {0: [1.0], 2: [2.0]})
    encoder.cache.copy_prefix(0, 1, 2)
    assert encoder.store([1, 1], [2, 3], {1: [9.0]}) == [[1], [9]]
    encoder.cache.remove(0, 0)
    assert encoder.store([1], [4]) == [[9]]
    encoder.cache.cells.check()


def test_an_image_that_does_not_fit_is_refused_before_anything_changes() -> None:
    encoder = Encoder(longest=3)
    encoder.store([0], [0], {0: [1.0, 2.0]})
    with pytest.raises(
        CacheFullError, match="the image at position 1 has 2 entries, and sequence 0 holds 2 of"
    ):
        encoder.store([0], [1], {0: [1.0, 2.0]})
    assert encoder.cache.length(0) == 1
    encoder.store([0], [1])
    with pytest.raises(ValueError, match="the images of this batch have 0 entries, got 1 keys"):
        encoder.cache.layer(4).put(column([0]), column([0]))


def test_images_that_were_not_stored_are_not_shown() -> None:
    cache = EncoderCache(OPS, {4: ONE}, sequences=1, longest=8, entries=len)
    batch = Batch.of([0], [0], [0], [])
    batch.payloads = [(0, [1.0, 2.0])]
    cache.start_forward(batch)
    with pytest.raises(ValueError, match="layer 4 has not been given the images of this pass"):
        cache.layer(4).view()


def test_a_failed_pass_drops_its_images() -> None:
    encoder = Encoder()
    encoder.store([0], [0], {0: [1.0]})
    encoder.store([0, 0, 1], [1, 2, 0], {0: [2.0], 2: [3.0]})
    encoder.cache.undo_forward()
    assert (encoder.cache.images(0), encoder.cache.images(1)) == ([0], [])
    assert encoder.store([0], [1]) == [[1]]
    encoder.cache.cells.check()


def test_images_are_compacted() -> None:
    encoder = Encoder(sequences=3)
    for position in range(3):
        encoder.store([0, 1], [position] * 2, {0: [1.0 + position], 1: [10.0 + position]})
    encoder.cache.remove(0, 0)
    while encoder.cache.compact(1):
        pass
    assert encoder.cache.cells.cells(1).tolist() == [0, 1, 2]
    assert encoder.store([1], [3]) == [[10, 11, 12]]
