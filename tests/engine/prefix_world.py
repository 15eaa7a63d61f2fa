"""A prefix cache over a real cache, without a model."""

from __future__ import annotations

from puna.batch import Batch
from puna.engine.prefix_cache import PrefixCache, PrefixEntry
from puna.kvcache.cache import Cache
from puna.kvcache.causal import CausalCache, KVShape
from tests.kvcache.probe import OPS

SHAPES = [KVShape(1, 4, 4)]


class World:
    """A prefix cache over a cache without a model."""

    def __init__(self, rows: int = 4, cache: Cache | None = None) -> None:
        self.cache = cache or CausalCache(OPS, SHAPES, sequences=rows, context=64, capacity=200)
        self.prefix_cache = PrefixCache(self.cache, rows)

    def begin(self, keys: list, *, come: int | None = None) -> tuple[PrefixEntry, int]:
        """Start a request with the prompt `keys`, evaluated up to `come`; return entry and shared length."""
        found = self.prefix_cache.find(keys, len(keys) - 1)
        entry = self.prefix_cache.acquire(found.entry, found.count)
        shared = entry.evaluated
        self.prefix_cache.index(entry, keys)
        self.evaluate(entry, (len(keys) if come is None else come) - shared)
        return entry, shared

    def evaluate(self, entry: PrefixEntry, count: int) -> None:
        begin = entry.evaluated
        if count > 0:
            positions = list(range(begin, begin + count))
            self.cache.start_forward(Batch.of([0] * count, positions, [entry.row] * count, []))
            entry.evaluated += count

    def finished(self, keys: list) -> PrefixEntry:
        entry, _ = self.begin(keys)
        self.prefix_cache.release(entry, keys)
        return entry

    def free(self) -> int:
        assert isinstance(self.cache, CausalCache)
        self.cache.cells.check()
        return self.cache.cells.free
