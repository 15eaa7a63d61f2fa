"""Cell counts of caches, compared with their contents."""

from __future__ import annotations

from collections import Counter

import pytest

from puna.batch import Batch
from puna.kvcache.cache import Cache
from puna.kvcache.causal import CausalCache, KVShape
from puna.kvcache.contents import CellCounts
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.windows import SlidingCache
from puna.kvcache.wrapper import WrapperCache
from tests.kvcache.probe import NUMBERS, OPS, Probe, add_shift


def shown(cache: Cache) -> list[CellCounts]:
    """Return the same counts from the picture of the cache."""
    found = []
    for contents in cache.contents():
        holders = Counter(cell for sequence in contents.sequences for cell in sequence.cells)
        shared = sum(count > 1 for count in holders.values())
        found.append(CellCounts(contents.kind, contents.capacity, len(holders), shared))
    return found


def test_cells_of_several_sequences_are_shared_and_counted_once() -> None:
    probe = Probe(sequences=3, context=16, capacity=20)
    assert probe.cache.counts() == [CellCounts("causal", 20, 0, 0)]
    probe.store([0] * 5, [0, 1, 2, 3, 4], [1.0] * 5)
    probe.cache.copy_prefix(0, 1, 3)
    probe.store([1, 2], [3, 0], [2.0, 3.0])
    assert probe.cache.counts() == [CellCounts("causal", 20, 7, 3)] == shown(probe.cache)
    probe.cache.remove(0, 0)
    assert probe.cache.counts() == [CellCounts("causal", 20, 5, 0)] == shown(probe.cache)


@pytest.mark.parametrize("removed", [0, 1])
def test_a_wrapper_counts_each_of_its_caches(removed: int) -> None:
    def celled(kind: type[CausalCache], layer: int, **options: int) -> CausalCache:
        shape = {layer: KVShape(1, 1, 1)}
        return kind(OPS, shape, sequences=2, context=16, types=NUMBERS, shift=add_shift, **options)

    cache = WrapperCache(
        celled(CausalCache, 0),
        celled(SlidingCache, 1, window=4),
        RecurrentCache(OPS, {2: {"state": (2,)}}, sequences=2),
    )
    cache.start_forward(Batch.of([0] * 9, list(range(9)), [0] * 9, []))
    cache.copy_prefix(0, 1, 9)
    cache.start_forward(Batch.of([0], [9], [1], []))
    if removed:
        cache.remove(0, 0)
    counts = cache.counts()
    assert [count.kind for count in counts] == ["causal", "sliding", "recurrent"]
    assert counts[0].used == 10
    assert counts[0].shared == (0 if removed else 9)
    assert counts == shown(cache)
