"""Who runs, who waits, and what the next batch is made of.

A request waits for a place, for room in the cache, or for another request that is just evaluating what both
begin with. Room is made by forgetting finished requests, and if that is not enough by making the last of the
running ones wait: what it has generated so far is kept and evaluated again later.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

from puna.engine.batching import Share, first_group, plan
from puna.engine.fitting import group_begin, shift_count
from puna.engine.memories import Found, Memories, Memory
from puna.engine.pace import Pace
from puna.engine.sequence import Sequence
from puna.errors import CacheFullError, NotSupportedError

if TYPE_CHECKING:
    from puna.kvcache.cache import Cache

#: Waiting for another request to evaluate common inputs is worth it from so many on.
_WORTH_WAITING_FOR = 32
#: Cells kept free for each stream when another request is let in, so that it is not soon preempted again.
_HEADROOM = 16


class Scheduler:
    """Up to `parallel` running sequences of at most `context` inputs, and all that wait.

    Beside them run up to `brief` of those that end with their prompt. They are over after a pass or two, and
    the more of them share one, the less each costs.
    """

    def __init__(
        self, cache: Cache, memories: Memories, *, context: int, parallel: int, brief: int, batch_size: int
    ) -> None:
        self._cache = cache
        self._memories = memories
        self._context = context
        self._parallel = parallel
        self._brief = brief
        self._arrived = 0
        self.pace = Pace(batch_size)
        self.waiting: list[Sequence] = []  # in the order they are served
        self.running: list[Sequence] = []

    def __iter__(self) -> Iterator[Sequence]:
        yield from (*self.running, *self.waiting)

    def add(self, sequence: Sequence) -> None:
        """A new sequence waits for its turn."""
        self._arrived += 1
        sequence.number = self._arrived
        self._enqueue(sequence)

    def schedule(self) -> list[Share]:
        """What the next batch is made of; nothing when nobody is there."""
        self._admit()
        for sequence in [*self.running]:
            if len(sequence.inputs) > self._context:
                self._shift(sequence)
        self._make_room()
        prompts = [sequence.waiting for sequence in self.running if not sequence.decoding]
        streams = len(self.running) - len(prompts)
        budget = min(self.pace.budget(streams, len(prompts)), sum(prompts))
        budget = min(budget, self._memories.room(streams + budget) - streams)
        return plan(self.running, budget if streams else max(budget, 1), self._halts())

    def evaluated(self, shares: list[Share]) -> None:
        """The inputs of `shares` are in the cache now."""
        for share in shares:
            assert share.sequence.memory is not None
            share.sequence.memory.evaluated += share.count
            if share.sequence.evaluated == share.sequence.branch:
                self._memories.mark(share.sequence.memory, share.sequence.keys[: share.sequence.branch])

    def append(self, sequence: Sequence, token: int) -> None:
        """A running sequence goes on with a generated token."""
        assert sequence.memory is not None
        if sequence.generated == 1 and self._cache.forgets and sequence.request.cache_prompt:
            self._memories.mark(sequence.memory, sequence.keys)  # for whoever asks the same again
        sequence.append(token)
        if sequence.exact:
            self._memories.extend(sequence.memory, token)

    def confirm(self, sequence: Sequence) -> None:
        """The token just appended was guessed: its input is in the cache already."""
        assert sequence.memory is not None
        assert sequence.guesser is not None
        sequence.memory.evaluated += 1
        sequence.guesser.accepted += 1

    def take_back(self, sequence: Sequence) -> None:
        """What was guessed wrong goes from the cache again."""
        assert sequence.memory is not None
        self._cache.remove(sequence.memory.row, sequence.memory.evaluated)

    def leave(self, sequence: Sequence, *, forget: bool = False) -> None:
        """A sequence is over. What it leaves behind can be shared, unless it is to be forgotten."""
        if sequence.memory is None:
            self.waiting.remove(sequence)
            return
        self._release(sequence, forget=forget)
        self.running.remove(sequence)

    # --- admission ---------------------------------------------------------------------------------

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=lambda other: other.rank)

    def _admit(self) -> None:
        """Let waiting sequences run, in their order, as long as there are places and room."""
        full: set[bool] = set()  # of the two kinds of places, those of which none is left
        for sequence in [*self.waiting]:
            if self._is_brief(sequence) in full or self._has_to_wait(sequence):
                continue
            alike = self._alike(sequence)
            if self._is_full(sequence, alike) and self._lower(sequence, alike) is None:
                full.add(self._is_brief(sequence))
                continue
            if len(sequence.inputs) > self._context:
                sequence.cut(*self._excess(sequence))
            found = self._find(sequence)
            if self._is_worth_waiting(sequence, found):
                assert found.coming is not None
                sequence.awaited = (found.coming, found.coming_count)
                continue
            if not self._let_in(sequence, found):
                return

    def _has_to_wait(self, sequence: Sequence) -> bool:
        """Whether what it waits for is still to come."""
        if sequence.awaited is None:
            return False
        memory, count = sequence.awaited
        if memory.running and memory.evaluated < count:
            return True
        sequence.awaited = None
        return False

    def _is_brief(self, sequence: Sequence) -> bool:
        return self._brief > 0 and not sequence.lasting

    def _alike(self, sequence: Sequence) -> list[Sequence]:
        """The running sequences that have the places this one may have."""
        return [other for other in self.running if self._is_brief(other) == self._is_brief(sequence)]

    def _is_full(self, sequence: Sequence, alike: list[Sequence]) -> bool:
        return len(alike) >= (self._brief if self._is_brief(sequence) else self._parallel)

    def _lower(self, sequence: Sequence, running: list[Sequence]) -> Sequence | None:
        """Who of `running` has to make way for this one, being of lower priority."""
        last = max(running, key=lambda other: other.rank, default=None)
        return last if last is not None and last.rank[0] > sequence.rank[0] else None

    def _find(self, sequence: Sequence) -> Found:
        """What it need not evaluate itself; at least one input always is, for the logits after it."""
        if not sequence.request.cache_prompt or sequence.evaluates_all:
            return Found()
        found = self._memories.find(sequence.keys, len(sequence.inputs) - 1)
        if sequence.grouped:
            found.count = group_begin(sequence.inputs, found.count)
            found.coming_count = group_begin(sequence.inputs, found.coming_count)
            found.shared = group_begin(sequence.inputs, found.shared)
        return found

    def _is_worth_waiting(self, sequence: Sequence, found: Found) -> bool:
        if found.coming_count - found.count < _WORTH_WAITING_FOR:
            return False
        # Not for one of lower priority, which itself may have to wait.
        return any(
            other.memory is found.coming and other.rank[0] <= sequence.rank[0] for other in self.running
        )

    def _let_in(self, sequence: Sequence, found: Found) -> bool:
        """Start a sequence if there is room for all its inputs, or nobody else is running."""
        while not self._has_room(len(sequence.inputs) - found.count):
            if self._memories.evict(spared=found.memory):
                continue
            lower = self._lower(sequence, self.running)
            if lower is None:
                return False
            self._preempt(lower)
        alike = self._alike(sequence)
        if self._is_full(sequence, alike):
            lower = self._lower(sequence, alike)
            assert lower is not None
            self._preempt(lower)
        memory = self._memories.take(found.memory, found.count)
        self.waiting.remove(sequence)
        if sequence.request.cache_prompt:
            self._memories.follow(memory, sequence.keys)
        sequence.start(memory)
        sequence.branch = found.shared if found.shared - found.count >= _WORTH_WAITING_FOR else 0
        self.running.append(sequence)
        return True

    # --- room --------------------------------------------------------------------------------------

    def _has_room(self, count: int) -> bool:
        """Whether `count` more inputs fit beside all that is running; one alone has the whole cache."""
        if not self.running:
            return True
        wanted = count + sum(other.waiting + _HEADROOM * other.lasting for other in self.running)
        return self._cache.room(wanted) == wanted

    def _make_room(self) -> None:
        """Room for all streams, or for the next inputs of a prompt; the last to be served wait if need be."""
        while len(self.running) > 1:
            needed = sum(sequence.decoding for sequence in self.running)
            if not needed:
                oldest = min(self.running, key=lambda sequence: sequence.rank)
                needed = first_group(oldest.inputs, oldest.evaluated)
            if self._memories.room(needed) >= needed:
                return
            self._preempt(max(self.running, key=lambda sequence: sequence.rank))

    def _preempt(self, sequence: Sequence) -> None:
        """Make a running sequence wait; what it holds stays as long as there is room."""
        self._release(sequence)
        self.running.remove(sequence)
        self._enqueue(sequence)

    def _release(self, sequence: Sequence, *, forget: bool = False) -> None:
        memory, sequence.memory = sequence.memory, None
        assert memory is not None
        if forget or not sequence.request.cache_prompt:
            self._memories.drop(memory)
        else:
            keys = sequence.keys if sequence.exact else sequence.keys[: sequence.keep]
            self._memories.rest(memory, keys, lasting=sequence.lasting)

    def _halts(self) -> dict[Sequence, int]:
        """Where prompts are to pause, because somebody waits to share just so much, or others will want to.

        Not every cache can give a beginning of what it holds: those that forget can where it ends.
        """
        places: dict[Memory, int] = {}
        for sequence in self.waiting:
            if sequence.awaited is not None:
                memory, count = sequence.awaited
                places[memory] = min(count, places.get(memory, count))
        halts: dict[Sequence, int] = {}
        for sequence in self.running:
            assert sequence.memory is not None
            ahead = [places.get(sequence.memory, 0), sequence.branch]
            halts[sequence] = min((place for place in ahead if place > sequence.evaluated), default=0)
        return halts

    # --- the end of the context ----------------------------------------------------------------------

    def _excess(self, sequence: Sequence) -> tuple[int, int]:
        """Which inputs are to go from a full context; the newest has no place in it yet."""
        count = shift_count(sequence.inputs[:-1], self._context, sequence.keep)
        return sequence.keep, sequence.keep + count

    def _shift(self, sequence: Sequence) -> None:
        """Drop old inputs of a full context. What follows them moves, or is evaluated again."""
        memory = sequence.memory
        assert memory is not None
        begin, end = self._excess(sequence)
        sequence.cut(begin, end)
        while True:
            try:
                self._cache.remove(memory.row, begin, end)
            except NotSupportedError:
                pass
            except CacheFullError:  # cells that are shared are copied, and there are none for that
                if self._memories.evict():
                    continue
            else:
                # What moved was evaluated with what is gone still before it. It is nothing to share.
                self._memories.unfollow(memory)
                sequence.exact = False
                memory.evaluated -= end - begin
                return
            break
        self._cache.remove(memory.row, 0)
        memory.evaluated = 0
        if sequence.request.cache_prompt:
            self._memories.unfollow(memory)
            self._memories.follow(memory, sequence.keys)
        sequence.exact = True
