"""The cache of a model whose layers are on several devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from puna.batch import Batch
from puna.kvcache.cache import Cache, LayerCache, LayerState
from puna.kvcache.contents import CellCounts, Contents, Extents
from puna.kvcache.saved import Saved
from puna.kvcache.wrapper import WrapperCache, all_of

_Described = TypeVar("_Described", Contents, Extents)


class DividedCache(WrapperCache):
    """Caches of the stages of one model, in order, each with storage for its own layers.

    Each counts the cells of all layers, and the same is done to all of them. So what sequences hold is known
    from the first, and a saved sequence does not depend on the division, unless it has memories of linear
    attention, which devices store differently.
    """

    def __init__(self, stages: Sequence[Cache]) -> None:
        self.caches = tuple(stages)
        self.context = stages[0].context
        self._owners = {index: cache for cache in stages for index in cache.layers}

    @property
    def layers(self) -> Iterable[int]:
        return self._owners.keys()

    def layer(self, index: int) -> LayerCache:
        return self._owners[index].layer(index)

    def state(self, index: int) -> LayerState:
        return self._owners[index].state(index)

    def start_side_pass(self, layer: int, batch: Batch, *, first: int) -> None:
        self._owners[layer].start_side_pass(layer, batch, first=first)

    @property
    def kind(self) -> str:
        return self.caches[0].kind

    def counts(self) -> list[CellCounts]:
        return self.caches[0].counts()

    def contents(self) -> list[Contents]:
        return self._together("contents")

    def extents(self) -> list[Extents]:
        return self._together("extents")

    def _together(self, name: str) -> list[Any]:
        """Return what `contents` or `extents` say of the first stage, with the layers and bytes of all."""
        every = [getattr(cache, name)() for cache in self.caches]
        return [_joined(of_stages) for of_stages in zip(*every, strict=True)]

    def save(self, sequence: int) -> Saved:
        first, *others = [cache.save(sequence) for cache in self._saving()]
        arrays = {name: array for saved in (first, *others) for name, array in saved.arrays.items()}
        return Saved(arrays, first.facts)

    def plan_restore(self, sequence: int, saved: Saved) -> Callable[[], None]:
        return all_of(cache.plan_restore(sequence, saved) for cache in self._saving())


def _joined(of_stages: Sequence[_Described]) -> _Described:
    layers = sorted(index for each in of_stages for index in each.layers)
    return replace(of_stages[0], layers=layers, provided_bytes=sum(each.provided_bytes for each in of_stages))
