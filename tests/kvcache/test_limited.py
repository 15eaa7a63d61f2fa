"""Sliding windows and chunks.

A window of W is W keys, the token's own included, as in transformers.
"""

from __future__ import annotations

import numpy as np
import pytest

from puna.batch import Batch
from puna.errors import CacheFullError, NotSupportedError
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.windows import ChunkedCache, SlidingCache
from tests.kvcache.probe import NUMBERS, OPS, Probe


def sliding(window: int, **options) -> Probe:
    return Probe(kind=SlidingCache, window=window, **options)


def resumable(probe: Probe, sequence: int = 0) -> list[int]:
    """Return the positions to resume from, without 0, which is always possible."""
    assert probe.cache.can_resume(sequence, 0)
    return [p for p in range(1, probe.cache.length(sequence) + 3) if probe.cache.can_resume(sequence, p)]


def run(probe: Probe, sequence: int, count: int, together: int = 1) -> None:
    begin = probe.cache.length(sequence)
    for first in range(begin, begin + count, together):
        positions = list(range(first, min(first + together, begin + count)))
        probe.store([sequence] * len(positions), positions, [float(p) for p in positions])


def test_a_window_slides_and_its_cells_are_reused() -> None:
    probe = sliding(2, keep=2)
    assert probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4]) == [[1], [1, 2], [2, 3], [3, 4]]
    assert probe.store([0, 0], [4, 5], [5, 6]) == [[4, 5], [5, 6]]
    assert probe.cells(0) == [2, 3, 0, 1]


def test_sequences_slide_independently() -> None:
    probe = sliding(2, sequences=2, capacity=6)
    assert probe.store([0, 0], [0, 1], [1, 2]) == [[1], [1, 2]]
    assert probe.store([0, 0], [2, 3], [3, 4]) == [[2, 3], [3, 4]]
    assert probe.store([1, 1], [0, 1], [5, 6]) == [[5], [5, 6]]
    assert probe.store([1, 1], [2, 3], [7, 8]) == [[6, 7], [7, 8]]
    assert probe.store([0, 0], [4, 5], [9, 10]) == [[4, 9], [9, 10]]
    probe.cache.cells.check()


def test_kept_positions_outside_the_window_are_not_visible() -> None:
    probe = sliding(2, keep=3)
    probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4])
    assert probe.store([0, 0], [4, 5], [5, 6]) == [[4, 5], [5, 6]]
    assert probe.cells(0) == [1, 2, 3, 0, 4]


def test_resuming_needs_the_whole_window() -> None:
    probe = sliding(5)
    run(probe, 0, 5, together=5)
    assert resumable(probe) == [1, 2, 3, 4, 5]
    run(probe, 0, 1)
    assert resumable(probe) == [1, 2, 3, 4, 5, 6]  # the next pass forgets what only earlier rows saw
    run(probe, 0, 1)
    assert resumable(probe) == [5, 6, 7]
    assert probe.cache.resume_point(0, 6) == 6
    assert probe.cache.resume_point(0, 4) == 0


def test_a_larger_memory_allows_longer_removals() -> None:
    probe = sliding(5, keep=6)
    run(probe, 0, 7, together=7)
    run(probe, 0, 1)
    assert resumable(probe) == [5, 6, 7, 8]


@pytest.mark.parametrize("sequences", [1, 2])
def test_the_last_of_single_tokens_can_be_removed(sequences: int) -> None:
    probe = sliding(5, sequences=sequences)
    run(probe, 0, 10)
    assert (probe.cache.cells.first[0], resumable(probe)) == (4, [8, 9, 10])
    probe.cache.remove(0, 9)
    assert probe.store([0], [9], [99]) == [[5, 6, 7, 8, 99]]


def test_sequences_outside_the_batch_forget_too() -> None:
    probe = sliding(5, sequences=2)
    run(probe, 0, 8, together=4)
    probe.store([1], [0], [1])
    assert (probe.cache.cells.first[0], resumable(probe)) == (3, [7, 8])


@pytest.mark.parametrize(("window", "memory"), [(4, 3), (0, None)])
def test_a_memory_shorter_than_the_window_is_refused(window: int, memory: int | None) -> None:
    with pytest.raises(ValueError, match="a sliding window of"):
        sliding(window, keep=memory)


def test_full_batches_in_any_order_find_room() -> None:
    probe = sliding(4, sequences=3, context=40, capacity=3 * 4 + 6)
    for sequence in [0, 0, 1, 2, 2, 1, 0, 2, 1, 0]:
        run(probe, sequence, 6, together=6)
        probe.cache.cells.check()
    assert probe.cache.cells.free >= 3 * 4 + 6 - 3 * 4 - 6


def test_a_group_longer_than_the_window_fits() -> None:
    probe = sliding(4, context=64)
    run(probe, 0, 10, together=10)
    run(probe, 0, 50, together=50)
    assert probe.cache.length(0) == 60


def test_a_full_sliding_cache_forgets_nothing() -> None:
    probe = sliding(2, sequences=2, capacity=6)
    run(probe, 0, 4, together=4)
    with pytest.raises(CacheFullError, match="4 free cells of 6, and 5 are needed"):
        probe.store([1] * 5, [0, 1, 2, 3, 4], [0.0] * 5)
    assert len(probe.cells(0)) == 4


@pytest.mark.parametrize("memory", [2, 4])
def test_rows_see_their_own_chunk_up_to_themselves(memory: int) -> None:
    probe = Probe(kind=ChunkedCache, chunk=2, keep=memory)
    assert probe.store([0] * 4, [0, 1, 2, 3], [1, 2, 3, 4]) == [[1], [1, 2], [3], [3, 4]]
    assert probe.store([0] * 3, [4, 5, 6], [5, 6, 7]) == [[5], [5, 6], [7]]
    assert probe.store([0] * 2, [7, 8], [8, 9]) == [[7, 8], [9]]
    assert probe.cache.cells.first[0] == 6 - memory + memory % 2
    assert min(resumable(probe)) <= 7 - memory


def test_invisible_chunks_are_forgotten_whole() -> None:
    probe = Probe(kind=ChunkedCache, chunk=4, context=64, keep=2)
    firsts = []
    for _ in range(14):
        run(probe, 0, 1)
        firsts.append(int(probe.cache.cells.first[0]))
    # A pass at position p keeps the chunk of p - 2.
    assert firsts == [max(p - 2, 0) // 4 * 4 for p in range(14)]


def test_a_window_of_w_holds_w_keys_including_the_tokens_own() -> None:
    probe = sliding(3)
    assert probe.store([0] * 5, list(range(5)), [0, 1, 2, 3, 4])[-1] == [2, 3, 4]


def test_removal_that_would_expose_forgotten_positions_is_refused() -> None:
    probe = sliding(4, context=32)
    run(probe, 0, 12)
    before = probe.cells(0)
    with pytest.raises(NotSupportedError, match=r"would have to see positions 6 to 6, .* evaluate it again"):
        probe.cache.remove(0, 8, 11)
    assert probe.cells(0) == before
    probe.cache.remove(0, 0, 3)  # before everything that is remembered: the rest only moves
    assert probe.cache.length(0) == 9
    assert probe.store([0], [9], [99]) == [[9 - 3, 10 - 3, 11 - 3, 99]]
    probe.cache.cells.check()


def test_a_removal_within_memory_succeeds() -> None:
    probe = sliding(3, keep=8, context=32)
    run(probe, 0, 12)
    probe.cache.remove(0, 8, 10)
    assert probe.store([0], [10], [99]) == [[10 - 2, 11 - 2, 99]]
    assert probe.store([0], [11], [98]) == [[11 - 2, 99, 98]]


def test_a_sequence_slides_on_while_another_keeps_the_shared_prefix() -> None:
    probe = sliding(3, sequences=2, context=32)
    run(probe, 0, 4, together=4)
    probe.cache.copy_prefix(0, 1, 3)
    run(probe, 0, 8)
    assert probe.cache.can_resume(1, 3)
    assert probe.store([1], [3], [99]) == [[1, 2, 99]]
    probe.cache.cells.check()


def test_an_empty_prefix_is_empty_and_a_forgotten_one_cannot_resume() -> None:
    probe = sliding(3, sequences=2, context=32)
    run(probe, 0, 10)
    probe.cache.copy_prefix(0, 1, 5)
    assert not probe.cache.can_resume(1, 5)
    assert probe.cache.can_resume(1, 0)
    with pytest.raises(ValueError, match="positions 3 to 4 are forgotten; ask can_resume first"):
        probe.store([1], [5], [1])
    probe.cache.remove(1, 0)
    assert probe.store([1], [0], [1]) == [[1]]
    probe.cache.copy_prefix(0, 1, 0)
    assert probe.cells(1) == []


def test_rows_of_a_span_see_all_of_it() -> None:
    probe = Probe(sequences=2)
    seen = probe.store([0] * 5, list(range(5)), [0, 1, 2, 3, 4], spans=[(1, 3)])
    # The rows of a span see nothing after it.
    assert seen == [[0], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert probe.store([0, 0], [5, 6], [5, 6])[0] == [0, 1, 2, 3, 4, 5]
    probe.cache.remove(0, 0)
    seen = probe.store([0, 0, 1, 1], [0, 1, 0, 1], [1, 2, 3, 4], spans=[(2, 4)])
    assert seen == [[1], [1, 2], [3, 4], [3, 4]]


def test_a_span_longer_than_the_window_is_visible_whole() -> None:
    # transformers combines the masks of window and picture for Gemma 3 with OR.
    probe = sliding(2)
    seen = probe.store([0] * 6, list(range(6)), [0, 1, 2, 3, 4, 5], spans=[(1, 5)])
    assert seen == [[0], [0, 1, 2, 3, 4], *[[1, 2, 3, 4]] * 3, [4, 5]]


@pytest.mark.parametrize("span", [(1, 1), (0, 3), (1, 5)])
def test_a_span_must_be_rows_of_one_sequence(span: tuple[int, int]) -> None:
    probe = Probe(sequences=2)
    with pytest.raises(ValueError, match="not a span of one sequence"):
        probe.store([0, 0, 1], [0, 1, 0], [1, 2, 3], spans=[span])
    assert probe.cache.length(0) == 0


@pytest.mark.parametrize(("kind", "options"), [(SlidingCache, {"window": 5}), (ChunkedCache, {"chunk": 5})])
def test_a_failed_pass_is_undone(kind, options) -> None:
    probe = Probe(kind=kind, context=64, **options)
    run(probe, 0, 12, together=3)
    probe.cache.start_forward(Batch.of([0] * 4, [12, 13, 14, 15], [0] * 4, []))
    probe.cache.undo_forward()
    assert probe.cache.can_resume(0, 12)
    again = Probe(kind=kind, context=64, **options)
    run(again, 0, 12, together=3)
    assert probe.store([0], [12], [12]) == again.store([0], [12], [12])


@pytest.mark.parametrize(
    ("kind", "options", "sees"),
    [
        (CausalCache, {}, lambda p: range(p + 1)),
        (SlidingCache, {"window": 600}, lambda p: range(max(0, p - 599), p + 1)),
        (ChunkedCache, {"chunk": 700}, lambda p: range(p - p % 700, p + 1)),
    ],
)
def test_results_do_not_depend_on_slot_neighbours_batching_or_place(kind, options, sees) -> None:
    """The bits agree, also with windows and chunks that begin inside the attention kernel's chunks."""
    count, random = 1500, np.random.default_rng(1)
    keys, values = random.standard_normal((2, count, 2, 16), np.float32)
    queries = random.standard_normal((count, 4, 16), np.float32)

    def attend(sequence: int, sequences: int, sizes: list[int], noise: bool) -> np.ndarray:
        cache = kind(OPS, [KVShape(2, 16, 16)], sequences=sequences, context=2048, types=NUMBERS, **options)
        results, begin, step = [], 0, 0
        while begin < count:
            end = min(begin + sizes[step % len(sizes)], count)
            rows, others = list(range(begin, end)), [step] if noise else []
            owners = [sequence] * len(rows) + [0] * len(others)
            cache.start_forward(Batch.of([0] * len(owners), rows + others, owners, []))
            extra = random.standard_normal((len(others), 2, 16), np.float32)
            layer = cache.layer(0)
            layer.put(np.concatenate([keys[begin:end], extra]), np.concatenate([values[begin:end], extra]))
            view = layer.view()
            more = random.standard_normal((len(others), 4, 16), np.float32)
            query = np.concatenate([queries[begin:end], more])
            mixed = OPS.attention(query, view.keys, view.values, view.cells, view.starts, view.counts, 0.25)
            results.append(mixed[: len(rows)])
            begin, step = end, step + 1
            if noise:
                cache.compact(7)
        return np.concatenate(results)

    alone = attend(0, 1, [count], noise=False)
    assert np.array_equal(attend(2, 3, [200, 1, 33], noise=True), alone)
    for position in (0, 3, 599, 600, 701, 1499):
        seen = np.array(list(sees(position)))
        query = queries[position].astype(np.float64)
        scores = np.einsum("hd,nhd->hn", query, keys[seen].repeat(2, axis=1)) * 0.25
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        expected = np.einsum("hn,nhd->hd", weights, values[seen].repeat(2, axis=1))
        assert np.allclose(alone[position], expected, atol=1e-5)


def test_capacity_of_the_window_alone_serves_a_long_text() -> None:
    probe = sliding(8, context=4096, capacity=8 + 16)
    for _ in range(200):
        run(probe, 0, 16, together=16)
    assert probe.cache.length(0) == 3200
    assert isinstance(probe.cache, CausalCache)


def test_room_includes_cells_that_a_pass_would_free() -> None:
    probe = sliding(2, keep=2, capacity=6)
    run(probe, 0, 4, together=4)
    assert [probe.cache.room(wanted) for wanted in (0, 2, 4, 10)] == [0, 2, 4, 4]
    with pytest.raises(CacheFullError):
        run(probe, 0, 5, together=5)
    run(probe, 0, 4, together=4)
