"""Several caches as one, for models with layers of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from puna.batch import Batch
from puna.errors import CacheFileError, NotSupportedError, shown
from puna.kvcache.cache import Cache, Compacting, LayerCache, LayerState, Picturing, Saving
from puna.kvcache.contents import CellCounts, Contents, Extents
from puna.kvcache.recurrent import RecurrentCache
from puna.kvcache.saved import Saved


class WrapperCache(Cache):
    """Caches of different layers of the same sequences. Either all of them perform an operation, or none.

    A layer may have a state in one of them, and keys and values in another.
    """

    def __init__(self, *caches: Cache) -> None:
        self.caches = caches
        self._layers: dict[int, Cache] = {}
        self._states: dict[int, Cache] = {}
        for cache in caches:
            known = self._states if isinstance(cache, RecurrentCache) else self._layers
            for index in cache.layers:
                if index in known:
                    raise ValueError(f"two caches have a layer {index}")
                known[index] = cache

    @property
    def layers(self) -> Iterable[int]:
        return (self._layers | self._states).keys()

    @property
    def generation(self) -> int | None:
        generations = [cache.generation for cache in self.caches]
        return None if None in generations else sum(number or 0 for number in generations)

    @property
    def max_drafts(self) -> int:
        return min(cache.max_drafts for cache in self.caches)

    def start_side_pass(self, layer: int, batch: Batch, *, first: int) -> None:
        self._layers[layer].start_side_pass(layer, batch, first=first)

    def start_reading(self, layers: Iterable[int], batch: Batch) -> None:
        wanted = list(layers)
        for cache in self.caches:
            if own := [layer for layer in wanted if self._layers[layer] is cache]:
                cache.start_reading(own, batch)

    def end_side_passes(self) -> None:
        for cache in self.caches:
            cache.end_side_passes()

    def plan_forward(self, batch: Batch) -> Callable[[], None]:
        actions = [cache.plan_forward(batch) for cache in self.caches]

        def begin() -> None:
            begun: list[Cache] = []
            try:
                for cache, action in zip(self.caches, actions, strict=True):
                    action()
                    begun.append(cache)
            except BaseException:  # out of memory
                for cache in begun:
                    cache.undo_forward()
                raise

        return begin

    def plan_removal(self, sequence: int, begin: int, end: int | None = None) -> Callable[[], None]:
        return all_of(cache.plan_removal(sequence, begin, end) for cache in self.caches)

    def undo_forward(self) -> None:
        for cache in self.caches:
            cache.undo_forward()

    def layer(self, index: int) -> LayerCache:
        return self._layers[index].layer(index)

    def state(self, index: int) -> LayerState:
        return self._states[index].state(index)

    def room(self, wanted: int) -> int:
        return min(cache.room(wanted) for cache in self.caches)

    def limit_cells(self, count: int) -> None:
        for cache in self.caches:
            cache.limit_cells(count)

    def length(self, sequence: int) -> int:
        return self.caches[0].length(sequence)

    def copy_prefix(self, source: int, target: int, count: int) -> None:
        for cache in self.caches:
            cache.copy_prefix(source, target, count)

    @property
    def resumes_anywhere(self) -> bool:
        return all(cache.resumes_anywhere for cache in self.caches)

    @property
    def forgets(self) -> bool:
        return any(cache.forgets for cache in self.caches)

    def resume_point(self, sequence: int, position: int) -> int:
        while True:
            points = [cache.resume_point(sequence, position) for cache in self.caches]
            if min(points) == position:
                return position
            position = min(points)

    def contents(self) -> list[Contents]:
        return [held for cache in self.caches if isinstance(cache, Picturing) for held in cache.contents()]

    def extents(self) -> list[Extents]:
        return [each for cache in self.caches if isinstance(cache, Picturing) for each in cache.extents()]

    def counts(self) -> list[CellCounts]:
        return [counts for cache in self.caches for counts in cache.counts()]

    def save(self, sequence: int) -> Saved:
        arrays, facts = {}, {}
        for number, cache in enumerate(self._saving()):
            saved = cache.save(sequence)
            arrays.update(saved.arrays)  # names begin with the layer, so they differ
            facts.update({f"{number}.{name}": fact for name, fact in saved.facts.items()})
        return Saved(arrays, facts)

    def plan_restore(self, sequence: int, saved: Saved) -> Callable[[], None]:
        plans, lengths = [], set()
        for number, cache in enumerate(self._saving()):
            prefix = f"{number}."
            facts = {
                name.removeprefix(prefix): f for name, f in saved.facts.items() if name.startswith(prefix)
            }
            own = Saved(saved.arrays, facts)
            plans.append(cache.plan_restore(sequence, own))
            lengths.add(own.length)
        if len(lengths) > 1:
            raise CacheFileError(
                f"one sequence cannot have the lengths {shown(lengths)}; the file is damaged"
            )
        return all_of(plans)

    def _saving(self) -> Iterable[Saving]:
        for cache in self.caches:
            if not isinstance(cache, Saving):
                raise NotSupportedError(f"the contents of a {cache.kind} cache cannot be saved")
            yield cache

    @property
    def allocated_bytes(self) -> int:
        return sum(cache.allocated_bytes for cache in self.caches)

    def layer_bytes(self, *, sequences: int, capacity: int, batch: int) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for cache in self.caches:
            own = cache.layer_bytes(sequences=sequences, capacity=capacity, batch=batch)
            sizes |= {index: sizes.get(index, 0) + count for index, count in own.items()}
        return sizes

    def bookkeeping_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        return sum(
            cache.bookkeeping_bytes(sequences=sequences, longest=longest, capacity=capacity)
            for cache in self.caches
        )

    def is_countable(self, *, sequences: int, longest: int, capacity: int) -> bool:
        return all(
            cache.is_countable(sequences=sequences, longest=longest, capacity=capacity)
            for cache in self.caches
        )

    def reserved_bytes(self, *, sequences: int, longest: int, capacity: int) -> int:
        return sum(
            cache.reserved_bytes(sequences=sequences, longest=longest, capacity=capacity)
            for cache in self.caches
        )

    @property
    def provided_bytes(self) -> int:
        return sum(cache.provided_bytes for cache in self.caches)

    def compact(self, limit: int = 256) -> bool:
        compacting = (cache for cache in self.caches if isinstance(cache, Compacting))
        return any(cache.compact(limit) for cache in compacting)  # one cache at a time

    def close(self) -> None:
        for cache in self.caches:
            cache.close()


def all_of(plans: Iterable[Callable[[], None]]) -> Callable[[], None]:
    """Return one action for all of `plans`, which have succeeded before it runs."""
    actions = list(plans)  # every plan must succeed before the first action runs

    def act() -> None:
        for action in actions:
            action()

    return act
