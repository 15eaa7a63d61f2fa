"""Compaction brings sequences together in bounded steps and changes nothing they see."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from puna.batch import Batch
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.cells import plan_moves
from tests.kvcache.probe import OPS, Probe


def test_compacted_sequences_lie_one_after_the_other() -> None:
    probe = Probe(sequences=3)
    for position in range(4):
        probe.store([0, 1, 2], [position] * 3, [10 + position, 20 + position, 30 + position])
    probe.cache.remove(1, 0)
    while probe.cache.compact(2):
        probe.cache.cells.check()
    assert (probe.cells(0), probe.cells(2)) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert probe.store([0, 2], [4, 4], [14, 34]) == [[10, 11, 12, 13, 14], [30, 31, 32, 33, 34]]


def test_contents_and_lists_move_together() -> None:
    probe = Probe(sequences=4)
    probe.store([2, 3, 1, 0], [0, 0, 0, 0], [7, 8, 2, 1])
    probe.cache.remove(2, 0)
    probe.cache.remove(3, 0)
    assert (probe.cells(0), probe.cells(1)) == ([3], [2])
    assert probe.cache.compact()
    assert (probe.cells(0), probe.cells(1)) == ([0], [1])
    assert probe.store([0, 1], [1, 1], [3, 4]) == [[1, 3], [2, 4]]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.randoms(use_true_random=False))
def test_a_step_moves_at_most_the_given_cells_and_steps_end(most: int, random) -> None:
    probe = Probe(sequences=3, context=12, capacity=30)
    number = 0
    for _ in range(8):
        sequence, count = random.randrange(3), random.randrange(1, 6)
        begin = probe.cache.length(sequence)
        if begin + count <= 12 and count <= probe.cache.cells.free:
            probe.store(
                [sequence] * count, list(range(begin, begin + count)), [number + i for i in range(count)]
            )
            number += count
        elif random.random() < 0.5:
            probe.cache.remove(sequence, 0, random.randrange(1, 6))
        else:
            probe.cache.copy_prefix(sequence, (sequence + 1) % 3, random.randrange(12))

    def contents() -> list[list[float]]:
        keys = probe.cache.storage.layers[0].keys
        return [keys.read(probe.cache.cells.cells(s)).reshape(-1).tolist() for s in range(3)]

    before, rounds = contents(), 0
    while (moves := plan_moves(probe.cache.cells, most)) is not None:
        assert len(moves[0]) <= 2 * most
        assert probe.cache.compact(most)
        probe.cache.cells.check()
        assert contents() == before
        rounds += 1
    assert rounds * most <= 30 + most
    used = {cell for s in range(3) for cell in probe.cells(s)}
    assert used == set(range(len(used)))
    assert not probe.cache.compact(most)


def test_attention_gives_the_same_bits_before_and_after() -> None:
    random = np.random.default_rng(0)
    cache = CausalCache(OPS, [KVShape(2, 32, 32)], sequences=3, context=700)
    lengths = [0, 0, 0]
    for sequence in random.integers(0, 3, 30).tolist():
        count = min(50, 700 - lengths[sequence])
        positions = list(range(lengths[sequence], lengths[sequence] + count))
        cache.start_forward(Batch.of([0] * count, positions, [sequence] * count, []))
        cache.layer(0).put(*random.standard_normal((2, count, 2, 32), np.float32))
        lengths[sequence] += count
    cache.remove(1, 0)
    cache.start_forward(Batch.of([0, 0], [lengths[0], lengths[2]], [0, 2], []))
    cache.layer(0).put(*random.standard_normal((2, 2, 2, 32), np.float32))
    query = random.standard_normal((2, 4, 32), np.float32)

    def attend() -> np.ndarray:
        view = cache.layer(0).view()
        return OPS.attention(query, view.keys, view.values, view.cells, view.starts, view.counts, 0.2)

    before, places = attend(), cache.cells.cells(2).copy()
    while cache.compact(100):
        assert np.array_equal(attend(), before)
    assert (cache.cells.cells(2) != places).any()
