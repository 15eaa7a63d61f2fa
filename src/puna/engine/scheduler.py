"""Who runs, who waits, and what the next batch is made of.

A request waits for a place, for room in the cache, or for another request that is just evaluating what both
begin with. Room is made by forgetting finished requests, and if that is not enough by making the last of the
running ones wait: what it has generated so far is kept and evaluated again later.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

from puna.engine.batching import BatchSlice, first_group, plan
from puna.engine.fitting import group_begin, shift_count
from puna.engine.prefix_cache import PrefixMatch, PrefixCache, PrefixEntry
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
        self, cache: Cache, prefix_cache: PrefixCache, *, context: int, parallel: int, prompt_only_slots: int, batch_size: int
    ) -> None:
        self._cache = cache
        self._prefix_cache = prefix_cache
        self._context = context
        self._parallel = parallel
        self._prompt_only_slots = prompt_only_slots
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

    def schedule(self) -> list[BatchSlice]:
        """What the next batch is made of; nothing when nobody is there."""
        self._admit()
        for sequence in [*self.running]:
            if len(sequence.inputs) > self._context:
                self._shift(sequence)
        self._make_room()
        prompts = [sequence.waiting for sequence in self.running if not sequence.decoding]
        streams = len(self.running) - len(prompts)
        budget = min(self.pace.budget(streams, len(prompts)), sum(prompts))
        budget = min(budget, self._prefix_cache.room(streams + budget) - streams)
        return plan(self.running, budget if streams else max(budget, 1), self._pauses())

    def evaluated(self, slices: list[BatchSlice]) -> None:
        """The inputs of `shares` are in the cache now."""
        for batch_slice in slices:
            assert batch_slice.sequence.entry is not None
            batch_slice.sequence.entry.evaluated += batch_slice.count
            if batch_slice.sequence.evaluated == batch_slice.sequence.branch_point:
                self._prefix_cache.checkpoint(batch_slice.sequence.entry, batch_slice.sequence.keys[: batch_slice.sequence.branch_point])

    def append(self, sequence: Sequence, token: int) -> None:
        """A running sequence goes on with a generated token."""
        assert sequence.entry is not None
        if sequence.generated == 1 and self._cache.forgets and sequence.request.cache_prompt:
            self._prefix_cache.checkpoint(sequence.entry, sequence.keys)  # for whoever asks the same again
        sequence.append(token)
        if sequence.exact:
            self._prefix_cache.extend(sequence.entry, token)

    def accept_draft(self, sequence: Sequence) -> None:
        """The token just appended was guessed: its input is in the cache already."""
        assert sequence.entry is not None
        assert sequence.drafting is not None
        sequence.entry.evaluated += 1
        sequence.drafting.accepted += 1

    def roll_back(self, sequence: Sequence) -> None:
        """What was guessed wrong goes from the cache again."""
        assert sequence.entry is not None
        self._cache.remove(sequence.entry.row, sequence.entry.evaluated)

    def leave(self, sequence: Sequence, *, forget: bool = False) -> None:
        """A sequence is over. What it leaves behind can be shared, unless it is to be forgotten."""
        if sequence.entry is None:
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
            if self._is_prompt_only(sequence) in full or self._has_to_wait(sequence):
                continue
            peers = self._peers(sequence)
            if self._is_full(sequence, peers) and self._preemptible(sequence, peers) is None:
                full.add(self._is_prompt_only(sequence))
                continue
            if len(sequence.inputs) > self._context:
                sequence.cut(*self._excess(sequence))
            found = self._find(sequence)
            if self._is_worth_waiting(sequence, found):
                assert found.pending is not None
                sequence.waits_for = (found.pending, found.pending_count)
                continue
            if not self._let_in(sequence, found):
                return

    def _has_to_wait(self, sequence: Sequence) -> bool:
        """Whether what it waits for is still to come."""
        if sequence.waits_for is None:
            return False
        entry, count = sequence.waits_for
        if entry.running and entry.evaluated < count:
            return True
        sequence.waits_for = None
        return False

    def _is_prompt_only(self, sequence: Sequence) -> bool:
        return self._prompt_only_slots > 0 and not sequence.generates

    def _peers(self, sequence: Sequence) -> list[Sequence]:
        """The running sequences that have the places this one may have."""
        return [other for other in self.running if self._is_prompt_only(other) == self._is_prompt_only(sequence)]

    def _is_full(self, sequence: Sequence, peers: list[Sequence]) -> bool:
        return len(peers) >= (self._prompt_only_slots if self._is_prompt_only(sequence) else self._parallel)

    def _preemptible(self, sequence: Sequence, running: list[Sequence]) -> Sequence | None:
        """Who of `running` has to make way for this one, being of lower priority."""
        last = max(running, key=lambda other: other.rank, default=None)
        return last if last is not None and last.rank[0] > sequence.rank[0] else None

    def _find(self, sequence: Sequence) -> PrefixMatch:
        """What it need not evaluate itself; at least one input always is, for the logits after it."""
        if not sequence.request.cache_prompt or sequence.evaluates_all:
            return PrefixMatch()
        found = self._prefix_cache.find(sequence.keys, len(sequence.inputs) - 1)
        if sequence.grouped:
            found.count = group_begin(sequence.inputs, found.count)
            found.pending_count = group_begin(sequence.inputs, found.pending_count)
            found.shared = group_begin(sequence.inputs, found.shared)
        return found

    def _is_worth_waiting(self, sequence: Sequence, found: PrefixMatch) -> bool:
        if found.pending_count - found.count < _WORTH_WAITING_FOR:
            return False
        # Not for one of lower priority, which itself may have to wait.
        return any(
            other.entry is found.pending and other.rank[0] <= sequence.rank[0] for other in self.running
        )

    def _let_in(self, sequence: Sequence, found: PrefixMatch) -> bool:
        """Start a sequence if there is room for all its inputs, or nobody else is running."""
        while not self._has_room(len(sequence.inputs) - found.count):
            if self._prefix_cache.evict(except_for=found.entry):
                continue
            preemptible = self._preemptible(sequence, self.running)
            if preemptible is None:
                return False
            self._preempt(preemptible)
        peers = self._peers(sequence)
        if self._is_full(sequence, peers):
            preemptible = self._preemptible(sequence, peers)
            assert preemptible is not None
            self._preempt(preemptible)
        entry = self._prefix_cache.acquire(found.entry, found.count)
        self.waiting.remove(sequence)
        if sequence.request.cache_prompt:
            self._prefix_cache.index(entry, sequence.keys)
        sequence.start(entry)
        sequence.branch_point = found.shared if found.shared - found.count >= _WORTH_WAITING_FOR else 0
        self.running.append(sequence)
        return True

    # --- room --------------------------------------------------------------------------------------

    def _has_room(self, count: int) -> bool:
        """Whether `count` more inputs fit beside all that is running; one alone has the whole cache."""
        if not self.running:
            return True
        wanted = count + sum(other.waiting + _HEADROOM * other.generates for other in self.running)
        return self._cache.room(wanted) == wanted

    def _make_room(self) -> None:
        """Room for all streams, or for the next inputs of a prompt; the last to be served wait if need be."""
        while len(self.running) > 1:
            needed = sum(sequence.decoding for sequence in self.running)
            if not needed:
                oldest = min(self.running, key=lambda sequence: sequence.rank)
                needed = first_group(oldest.inputs, oldest.evaluated)
            if self._prefix_cache.room(needed) >= needed:
                return
            self._preempt(max(self.running, key=lambda sequence: sequence.rank))

    def _preempt(self, sequence: Sequence) -> None:
        """Make a running sequence wait; what it holds stays as long as there is room."""
        self._release(sequence)
        self.running.remove(sequence)
        self._enqueue(sequence)

    def _release(self, sequence: Sequence, *, forget: bool = False) -> None:
        entry, sequence.entry = sequence.entry, None
        assert entry is not None
        if forget or not sequence.request.cache_prompt:
            self._prefix_cache.drop(entry)
        else:
            keys = sequence.keys if sequence.exact else sequence.keys[: sequence.keep]
            self._prefix_cache.release(entry, keys, generates=sequence.generates)

    def _pauses(self) -> dict[Sequence, int]:
        """Where prompts are to pause, because somebody waits to share just so much, or others will want to.

        Not every cache can give a beginning of what it holds: those that forget can where it ends.
        """
        places: dict[PrefixEntry, int] = {}
        for sequence in self.waiting:
            if sequence.waits_for is not None:
                entry, count = sequence.waits_for
                places[entry] = min(count, places.get(entry, count))
        pauses: dict[Sequence, int] = {}
        for sequence in self.running:
            assert sequence.entry is not None
            ahead = [places.get(sequence.entry, 0), sequence.branch_point]
            pauses[sequence] = min((place for place in ahead if place > sequence.evaluated), default=0)
        return pauses

    # --- the end of the context ----------------------------------------------------------------------

    def _excess(self, sequence: Sequence) -> tuple[int, int]:
        """Which inputs are to go from a full context; the newest has no place in it yet."""
        count = shift_count(sequence.inputs[:-1], self._context, sequence.keep)
        return sequence.keep, sequence.keep + count

    def _shift(self, sequence: Sequence) -> None:
        """Drop old inputs of a full context. What follows them moves, or is evaluated again."""
        entry = sequence.entry
        assert entry is not None
        begin, end = self._excess(sequence)
        sequence.cut(begin, end)
        while True:
            try:
                self._cache.remove(entry.row, begin, end)
            except NotSupportedError:
                pass
            except CacheFullError:  # cells that are shared are copied, and there are none for that
                if self._prefix_cache.evict():
                    continue
            else:
                # What moved was evaluated with what is gone still before it. It is nothing to share.
                self._prefix_cache.unindex(entry)
                sequence.exact = False
                entry.evaluated -= end - begin
                return
            break
        self._cache.remove(entry.row, 0)
        entry.evaluated = 0
        if sequence.request.cache_prompt:
            self._prefix_cache.unindex(entry)
            self._prefix_cache.index(entry, sequence.keys)
        sequence.exact = True
