"""The causal cache, case by case and against an oracle."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.batch import Batch
from puna.errors import CacheFullError, NotSupportedError
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.types import KVTypes
from tests.kvcache.probe import OPS, Probe, add_shift, column


def test_rows_see_themselves_and_earlier_positions() -> None:
    probe = Probe()
    assert probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4]) == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]
    assert probe.store([0], [4], [5]) == [[1, 2, 3, 4, 5]]


def test_sequences_do_not_see_each_other() -> None:
    probe = Probe(sequences=2)
    assert probe.store([0, 0, 1, 1], [0, 1, 0, 1], [1, 2, 3, 4]) == [[1], [1, 2], [3], [3, 4]]
    assert probe.store([0, 1], [2, 2], [5, 6]) == [[1, 2, 5], [3, 4, 6]]


def test_freed_cells_serve_any_sequence_and_a_full_cache_changes_nothing() -> None:
    probe = Probe(sequences=2, context=8, capacity=8)
    for position in range(3):
        probe.store([0, 1], [position, position], [10 + position, 20 + position])
    probe.cache.remove(1, 0)
    assert probe.store([0], [3], [13]) == [[10, 11, 12, 13]]
    assert probe.cells(0) == [0, 2, 4, 1]
    with pytest.raises(CacheFullError, match="4 free cells of 8"):
        probe.store([1] * 5, [0, 1, 2, 3, 4], [0] * 5)
    probe.cache.cells.check()
    assert probe.cells(1) == []
    assert probe.cells(0) == [0, 2, 4, 1]


def test_a_batch_of_another_size_is_refused() -> None:
    probe = Probe()
    probe.cache.start_forward(Batch.of([0] * 4, [0, 1, 2, 3], [0] * 4, []))
    with pytest.raises(ValueError, match="the batch has 4 rows, got 3 keys"):
        probe.cache.layer(0).put(column([0] * 3), column([0] * 3))


def test_view_before_put_is_refused() -> None:
    shapes = [KVShape(1, 1, 1)] * 2
    cache = CausalCache(OPS, shapes, sequences=1, context=8)
    row = column([1])
    for position in range(2):
        cache.start_forward(Batch.of([0], [position], [0], []))
        cache.layer(0).put(row, row)
        assert cache.layer(0).view().counts.tolist() == [position + 1]
        with pytest.raises(ValueError, match="layer 1 has not been given the keys of this pass"):
            cache.layer(1).view()
        if position == 0:
            cache.layer(1).put(row, row)


@pytest.mark.parametrize(("positions", "sequences"), [([0, 1], [0]), ([], [])])
def test_misshapen_batches_are_refused(positions: list[int], sequences: list[int]) -> None:
    with pytest.raises(ValueError, match="as many positions and sequences as tokens"):
        Batch.of([0] * len(positions), positions, sequences, [])


def test_the_tail_and_the_middle_can_be_removed() -> None:
    probe = Probe(sequences=2)
    probe.store([0, 0, 1, 1], [0, 1, 0, 1], [1, 2, 3, 4])
    probe.cache.remove(0, 1)
    assert probe.store([0, 1], [1, 2], [5, 6]) == [[1, 5], [3, 4, 6]]
    probe.cache.remove(0, 0, 1)
    # Key 5 moves from position 1 to 0: shifted by -1 to 4.
    assert probe.store([0, 0], [1, 2], [7, 8]) == [[4, 7], [4, 7, 8]]


def test_later_entries_move_down_and_freed_cells_are_used_first() -> None:
    probe = Probe()
    for begin, end in ((0, 3), (3, 6), (6, 8)):
        probe.store([0] * (end - begin), list(range(begin, end)), list(range(begin, end)))
    probe.cache.remove(0, 2, 5)
    assert probe.cache.length(0) == 5
    assert probe.store([0], [5], [99]) == [[0, 1, 5 - 3, 6 - 3, 7 - 3, 99]]
    assert probe.cells(0)[-1] == 2


def test_without_a_shift_function_only_the_tail_can_be_removed() -> None:
    probe = Probe(shift=None)
    probe.store([0] * 8, list(range(8)), list(range(8)))
    with pytest.raises(NotSupportedError):
        probe.cache.remove(0, 2, 5)
    assert probe.cache.length(0) == 8
    probe.cache.remove(0, 0)
    assert probe.cache.cells.free == 16


def test_removing_all_frees_the_cells_and_keeps_the_storage() -> None:
    probe = Probe()
    probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4])
    provided, place = probe.cache.provided_bytes, probe.cache.storage.layers[0].keys.stored.ctypes.data
    probe.cache.remove(0, 0)
    assert (probe.cache.length(0), probe.cells(0), probe.cache.cells.free) == (0, [], 16)
    assert probe.cache.provided_bytes == provided
    assert probe.cache.storage.layers[0].keys.stored.ctypes.data == place
    assert probe.store([0], [0], [9]) == [[9]]


def test_removals_that_move_nothing_need_no_shift() -> None:
    probe = Probe(sequences=2, shift=None)
    probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4])
    probe.cache.remove(0, 9, 12)
    probe.cache.remove(1, 0, 3)
    assert probe.cache.length(0) == 4
    probe.cache.remove(0, 0, 4)
    assert probe.cache.length(0) == 0
    with pytest.raises(ValueError, match="cannot remove positions 3 to 1"):
        probe.cache.remove(0, 3, 1)


def test_a_copied_prefix_is_shared() -> None:
    probe = Probe(sequences=2)
    probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4])
    probe.cache.copy_prefix(0, 1, 2)
    assert probe.store([1, 1], [2, 3], [5, 6]) == [[1, 2, 5], [1, 2, 5, 6]]
    assert probe.cells(0)[:2] == probe.cells(1)[:2]
    assert probe.cache.cells.free == 2 * 16 - 6


def test_removing_a_shared_tail_leaves_the_other_its_cells() -> None:
    probe = Probe(sequences=2)
    probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4])
    probe.cache.copy_prefix(0, 1, 4)
    probe.cache.remove(1, 2)
    assert (probe.cells(0), probe.cells(1)) == ([0, 1, 2, 3], [0, 1])


def test_shifting_shared_cells_copies_them_first() -> None:
    probe = Probe(sequences=2)
    probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4])
    probe.cache.copy_prefix(0, 1, 4)
    probe.cache.remove(0, 1, 2)
    assert probe.store([0, 1], [3, 4], [5, 6]) == [[1, 3 - 1, 4 - 1, 5], [1, 2, 3, 4, 6]]
    probe.cache.cells.check()


def test_shifting_shared_cells_without_room_for_copies_changes_nothing() -> None:
    probe = Probe(sequences=2, context=8, capacity=4)
    probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4])
    probe.cache.copy_prefix(0, 1, 4)
    with pytest.raises(CacheFullError):
        probe.cache.remove(0, 1, 2)
    assert probe.cells(0) == probe.cells(1) == [0, 1, 2, 3]
    probe.cache.cells.check()


def test_unshared_cells_are_shifted_in_place() -> None:
    probe = Probe(sequences=2)
    probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4])
    probe.cache.copy_prefix(0, 1, 2)
    probe.cache.remove(0, 1, 2)
    assert (probe.cells(0), probe.cells(1)) == ([0, 2, 3], [0, 1])


def test_copying_a_prefix_replaces_the_target() -> None:
    probe = Probe(sequences=2)
    probe.store([0, 0, 1, 1], [0, 1, 0, 1], [1, 2, 3, 4])
    probe.cache.copy_prefix(0, 1, 2)
    assert probe.cache.cells.free == 2 * 16 - 2
    probe.cache.copy_prefix(0, 1, 0)
    assert probe.cells(1) == []
    probe.cache.cells.check()


def test_a_failed_forward_pass_is_undone() -> None:
    probe = Probe(sequences=2)
    probe.store([0, 1], [0, 0], [1, 2])
    probe.cache.start_forward(Batch.of([0] * 3, [1, 2, 1], [0, 0, 1], []))
    probe.cache.undo_forward()
    assert (probe.cache.length(0), probe.cache.length(1)) == (1, 1)
    probe.cache.cells.check()


def test_positions_must_continue_the_sequence() -> None:
    probe = Probe()
    probe.store([0], [0], [1])
    with pytest.raises(ValueError, match="sequence 0 continues at position 1"):
        probe.cache.start_forward(Batch.of([0], [3], [0], []))
    with pytest.raises(ValueError, match="sequence 0 continues at position 1"):
        probe.cache.start_forward(Batch.of([0, 0], [1, 3], [0, 0], []))


def test_a_sequence_cannot_outgrow_its_context() -> None:
    probe = Probe(sequences=2, context=4)
    with pytest.raises(CacheFullError, match="would exceed the context of 4"):
        probe.store([0] * 5, [0, 1, 2, 3, 4], [0] * 5)
    assert probe.cache.length(0) == 0


@pytest.mark.parametrize(
    ("types", "bound"), [("f32", 0), ("f16", 2**-10), ("bf16", 2**-7), ("q8_0", 0.02), ("q4_0", 0.3)]
)
def test_every_type_stores_and_shifts(types: str, bound: float) -> None:
    cache = CausalCache(
        OPS,
        [KVShape(2, 64, 32)],
        sequences=2,
        context=16,
        types=KVTypes.parse(f"{types},f16"),
        shift=add_shift,
    )
    random = np.random.default_rng(2)
    keys, values = random.random((6, 2, 64), np.float32), random.random((6, 2, 32), np.float32)
    cache.start_forward(Batch.of([0] * 6, list(range(6)), [0] * 6, []))
    cache.layer(0).put(keys, values)
    assert cache.allocated_bytes == 32 * KVShape(2, 64, 32).cell_bytes(KVTypes.parse(f"{types},f16"))
    cache.copy_prefix(0, 1, 6)
    cache.remove(0, 1, 3)
    view = cache.layer(0).view()
    for sequence, expected in ((0, np.concatenate([keys[:1], keys[3:] - 2])), (1, keys)):
        cells = cache.cells.cells(sequence)
        assert np.abs(OPS.numpy(cache.storage.layers[0].read_keys(OPS, cells)) - expected).max() <= bound
        kept = values if sequence else values[[0, 3, 4, 5]]
        assert np.array_equal(view.values.read(cells), kept.astype(np.float16))


def test_heads_that_do_not_fill_blocks_are_refused() -> None:
    with pytest.raises(NotSupportedError, match="heads of 80 numbers do not fill Q8_0 blocks of 32; use f16"):
        CausalCache(OPS, [KVShape(1, 80, 64)], sequences=1, context=4, types=KVTypes.parse("q8_0"))
    with pytest.raises(NotSupportedError, match="heads of 72 numbers do not fill Q4_0"):
        KVShape(1, 64, 72).cell_bytes(KVTypes.parse("f16,q4_0"))
    with pytest.raises(NotSupportedError, match="heads of 48 numbers do not fill Q8_0 blocks"):
        KVShape(1, 96, 48, values_in_keys=True).cell_bytes(KVTypes.parse("q8_0,f16"))
    assert KVShape(1, 96, 64, values_in_keys=True).cell_bytes(KVTypes.parse("q8_0,f16")) == 3 * 34


def test_the_lists_of_all_sequences_round_alike() -> None:
    probe = Probe(sequences=3, context=600)
    probe.store([0, 1, 2], [0, 0, 0], [1, 2, 3])
    assert (probe.cache.layer(0).view().starts % 512 == 0).all()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 2), st.integers(1, 5)),
        st.tuples(st.just("copy"), st.integers(0, 2), st.integers(0, 2), st.integers(0, 12)),
        st.tuples(st.just("remove"), st.integers(0, 2), st.integers(0, 12), st.integers(0, 12)),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(operations)
def test_every_row_sees_exactly_its_sequence(steps: list[tuple]) -> None:
    probe = Probe(sequences=3, context=12, capacity=30)
    expected: list[list[float]] = [[], [], []]
    number = 0.0
    for step in steps:
        if step[0] == "store":
            _, sequence, count = step
            data = [number := number + 100 for _ in range(count)]
            positions = list(range(len(expected[sequence]), len(expected[sequence]) + count))
            try:
                seen = probe.store([sequence] * count, positions, data)
            except CacheFullError:
                continue
            before = len(expected[sequence])
            expected[sequence] += data
            assert seen == [expected[sequence][: before + row + 1] for row in range(count)]
        elif step[0] == "copy":
            _, source, target, count = step
            if source != target:
                probe.cache.copy_prefix(source, target, count)
                expected[target] = expected[source][:count]
        else:
            _, sequence, begin, length = step
            try:
                probe.cache.remove(sequence, begin, begin + length)
            except CacheFullError:
                continue
            tail = expected[sequence][begin + length :]
            expected[sequence] = expected[sequence][:begin] + [value - length for value in tail]
        probe.cache.cells.check()
