"""Which cache sequence a request gets: the idle one that already holds most of its prompt."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from puna.kvcache.cache import Cache
    from puna.model.input import Input


@dataclass
class Slot:
    """A cache sequence and the inputs whose keys and values it holds."""

    index: int
    inputs: list[Input] = field(default_factory=list)
    busy: bool = False
    last_used: int = 0


class Slots:
    """All slots of a cache. A finished request leaves its inputs behind for the next to reuse."""

    def __init__(self, cache: Cache, count: int) -> None:
        self._cache = cache
        self._slots = [Slot(index) for index in range(count)]
        self._clock = 0

    def take(self, prompt: list[Input], *, reuse: bool = True) -> tuple[Slot, int] | None:
        """An idle slot and how many inputs of `prompt` it already holds; None when all are busy.

        At least one is always left to evaluate. With several equally good, the least recently
        used one is taken.
        """
        idle = [slot for slot in self._slots if not slot.busy]
        if not idle:
            return None
        matches = {slot.index: self._reusable(slot, prompt) if reuse else 0 for slot in idle}
        slot = max(idle, key=lambda slot: (matches[slot.index], -slot.last_used))
        kept = matches[slot.index]
        self._cache.remove(slot.index, kept)
        del slot.inputs[kept:]
        slot.busy = True
        return slot, kept

    def _reusable(self, slot: Slot, prompt: list[Input]) -> int:
        """How many inputs of `prompt` need not be evaluated again in `slot`."""
        return self._cache.resume_point(slot.index, min(common_prefix(slot.inputs, prompt), len(prompt) - 1))

    def give_back(self, slot: Slot) -> None:
        """The request is over; what the cache really holds stays usable."""
        del slot.inputs[self._cache.length(slot.index) :]
        self._clock += 1
        slot.last_used = self._clock
        slot.busy = False

    def drop(self, slot: Slot) -> None:
        """Forget all a slot holds, after an error left its contents in doubt."""
        self._cache.remove(slot.index, 0)
        slot.inputs.clear()


def common_prefix(first: list[Input], second: list[Input]) -> int:
    """How many leading inputs are equal."""
    length = min(len(first), len(second))
    return next((i for i in range(length) if first[i] != second[i]), length)
