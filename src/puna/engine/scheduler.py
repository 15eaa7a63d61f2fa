"""The scheduler: which sequences run and wait, and which inputs go into the next batch.

Among waiting sequences of the same priority, each client's next one is served before any client's second. A
sequence waits for a slot, for room in the cache, or for another request that is evaluating a shared prefix.
Room is made by evicting finished requests, then by preempting the running sequence that is served last: its
generated tokens are kept, and evaluated again later.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from puna.engine.batching import BatchSlice, Draft, first_group, group_begin, plan, shift_count
from puna.engine.prefix_cache import PrefixCache, PrefixEntry, PrefixMatch
from puna.engine.sequence import Sequence
from puna.errors import CacheFullError, NotSupportedError
from puna.protocol import StepTotals
from puna.turns import ClientRotation

if TYPE_CHECKING:
    from puna.engine.batching import StepLoad
    from puna.kvcache.cache import Cache

#: Weight of a new measurement in the running average.
_WEIGHT = 0.25
#: The share of the prompts' time that is used, so that the bound holds although measurements scatter.
_CAUTION = 0.8
#: Maximum time of a step with prompts only: requests and cancellations wait for its end.
_LONGEST_S = 1.0
#: Batches of this many tokens reach full speed; larger ones gain nothing.
_EFFICIENT = 256
#: Smaller steps would save hardly any memory.
_FEWEST = 128
#: A pass this many times faster than those before shows that they did something else, too.
_COMPILED = 4
#: After this many steps with prompts, one without is measured again.
_REMEASURED_AFTER = 32


class Pace:
    """Measured times of steps, and the budget of prompt tokens for the next one, at most `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._streams = 0  # decoding sequences when the time was measured
        self._stream_s = 0.0  # time of a step with these only
        self._token_s = 0.0  # time that a prompt token adds
        self._mixed = 0  # steps since that measurement

    def budget(self, streams: int, prompts: int) -> int:
        """Return how many prompt tokens the next step may have beside `streams` decoding sequences."""
        if not streams:
            enough = int(_LONGEST_S / self._token_s) if self._token_s else self._most
            return min(max(enough, _EFFICIENT), self._most)
        if self._mixed >= _REMEASURED_AFTER or not self._streams / 2 <= streams <= self._streams * 2:
            return 0
        if not self._token_s:
            return min(streams, self._most)  # takes roughly as long as the decoding sequences
        due = self._stream_s * prompts * _CAUTION
        return max(1, min(int(due / self._token_s), self._most))

    def shrink(self, rows: int) -> int:
        """Have smaller steps from now on, as one with `rows` rows took too much memory.

        Returns how many rows they have at most; 0 if they cannot be smaller.
        """
        if rows > self._most or rows <= _FEWEST:
            return 0
        self._most = max(rows // 2, _FEWEST)
        return self._most

    def patience_s(self, load: StepLoad) -> float:
        """Return how long other work, such as encoding images, may delay the next step.

        Decoding sequences may be delayed by about the time of their own step, prompts not at all.
        """
        if load.decoding:
            return self._stream_s * _CAUTION
        return 0.0 if load.prompt else _LONGEST_S

    def measured(self, load: StepLoad, seconds: float) -> None:
        """Note that a step took `seconds`. Steps with drafts are ignored: their time depends on more."""
        streams, tokens = load.decoding, load.prompt
        if load.drafted:
            return
        if streams and not tokens:
            steady = 0 < self._streams / 2 <= streams <= self._streams * 2 and self._mixed < _REMEASURED_AFTER
            self._stream_s = _blend(self._stream_s, seconds) if steady else seconds
            self._streams = streams
            self._mixed = 0
        elif tokens:
            self._mixed += bool(streams)
            each = (max(seconds - self._stream_s, 0.0) if streams else seconds) / tokens
            # The first passes on a GPU wait for its kernels to be compiled.
            unusual = each < self._token_s / _COMPILED or not self._token_s
            self._token_s = each if unusual else _blend(self._token_s, each)


def _blend(before: float, now: float) -> float:
    return before + _WEIGHT * (now - before)


class StepClock:
    """Adds up what the time of steps goes on. Owned by the engine's thread."""

    def __init__(self) -> None:
        self.totals = StepTotals()

    @contextmanager
    def spending(self, on: Literal["sample_s", "mask_s", "draft_s", "image_s", "other_s"]) -> Iterator[None]:
        """Count the time of this context as spent on one thing."""
        began = time.monotonic()
        try:
            yield
        finally:
            totals = self.totals
            setattr(totals, on, getattr(totals, on) + time.monotonic() - began)

    def passed(self, load: StepLoad, seconds: float) -> None:
        """Count a pass of `seconds`; prompts and answers share it by their rows."""
        totals = self.totals
        rows = load.prompt + load.decoding + load.drafted
        of_prompts = seconds * load.prompt / rows if rows else 0.0
        totals.steps += 1
        totals.prompt_s += of_prompts
        totals.decode_s += seconds - of_prompts
        totals.prompt_tokens += load.prompt
        totals.drafted += load.drafted


#: Minimum shared inputs for which a sequence waits until another request has evaluated them.
_WORTH_WAITING_FOR = 32
#: Cells kept free per generating sequence at admission, so that none is soon preempted.
_HEADROOM = 16


class Scheduler:
    """Up to `parallel` running sequences of at most `context` inputs, and a queue of waiting ones.

    Sequences that end with their prompt (texts to embed) have `prompt_only_slots` of their own: they take a
    pass or two, and the more of them share a pass, the less each costs.
    """

    def __init__(
        self,
        cache: Cache,
        prefix_cache: PrefixCache,
        *,
        context: int,
        parallel: int,
        prompt_only_slots: int,
        batch_size: int,
    ) -> None:
        self._cache = cache
        self._prefix_cache = prefix_cache
        self._context = context
        self._parallel = parallel
        self._prompt_only_slots = prompt_only_slots
        self._arrived = 0
        self._turns = {"interactive": ClientRotation(), "batch": ClientRotation()}
        self.pace = Pace(batch_size)
        self.waiting: list[Sequence] = []  # in the order they will be served
        self.running: list[Sequence] = []
        self.on_release: Callable[[Sequence], None] | None = None  # called when the prefix cache takes over

    def __iter__(self) -> Iterator[Sequence]:
        yield from (*self.running, *self.waiting)

    @property
    def in_order(self) -> list[Sequence]:
        """The running sequences in the order in which they are served."""
        return sorted(self.running, key=lambda sequence: sequence.rank)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        self._arrived += 1
        sequence.number = self._arrived
        sequence.turn = self._turns[sequence.request.priority].take(sequence.request.client)
        self._enqueue(sequence)

    def schedule(self) -> list[BatchSlice]:
        """Return the slices of the next batch; empty when there is nothing to do."""
        self._admit()
        for sequence in [*self.running]:
            if len(sequence.inputs) > self._longest(sequence):
                self._shift(sequence)
        self._make_room()
        streams = sum(sequence.decoding for sequence in self.running)
        prompts: list[int] = []
        if streams < len(self.running):  # held sequences, which wait for their format, have no input
            prompts = [each.ready for each in self.running if each.waiting and not each.decoding]
        budget = min(self.pace.budget(streams, len(prompts)), sum(prompts))
        budget = min(budget, self._prefix_cache.room(streams + budget) - streams)
        pauses = self._pauses() if prompts else None
        return plan(self.running, budget if streams else max(budget, 1), pauses)

    def evaluated(self, slices: list[BatchSlice]) -> None:
        """Note that the inputs of `slices` are in the cache now."""
        for batch_slice in slices:
            assert batch_slice.sequence.entry is not None
            batch_slice.sequence.entry.evaluated += batch_slice.count
            if (count := batch_slice.sequence.evaluated) in batch_slice.sequence.branch_points:
                self._prefix_cache.checkpoint(
                    batch_slice.sequence.entry, batch_slice.sequence.cached_as[:count]
                )

    def append(self, sequence: Sequence, token: int) -> None:
        """Continue a running sequence with a generated token."""
        assert sequence.entry is not None
        if sequence.generated == 1 and self._cache.forgets and sequence.request.cache_prompt:
            self._prefix_cache.checkpoint(
                sequence.entry, sequence.cached_as
            )  # for the same prompt sent again
        sequence.append(token)
        if sequence.exact:
            self._prefix_cache.extend(sequence.entry, token)

    def accept_draft(self, sequence: Sequence, draft: Draft) -> None:
        """Note that the token just appended is of `draft`, so that its input is in the cache already."""
        assert sequence.entry is not None
        sequence.entry.evaluated += 1
        if not draft.known:
            assert sequence.drafting is not None
            sequence.drafting.accepted += 1

    def roll_back(self, sequence: Sequence) -> None:
        """Remove rejected draft tokens from the cache."""
        assert sequence.entry is not None
        self._cache.remove(sequence.entry.row, sequence.entry.evaluated)

    def leave(self, sequence: Sequence, *, forget: bool = False) -> None:
        """Remove a sequence that has ended. Its cache entry can be reused unless `forget` is set."""
        sequence.close()
        if sequence.entry is None:
            self.waiting.remove(sequence)
            asked = sequence.request.priority, sequence.request.client
            if not any((other.request.priority, other.request.client) == asked for other in self.waiting):
                self._turns[sequence.request.priority].emptied(sequence.request.client)
            return
        self._release(sequence, forget=forget)
        self.running.remove(sequence)

    # --- admission ---------------------------------------------------------------------------------

    def _enqueue(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=lambda other: other.rank)

    def _admit(self) -> None:
        """Start waiting sequences, in order, while there are slots and room."""
        full: set[bool] = set()  # kinds of slots (prompt-only or not) that are all taken
        for sequence in [*self.waiting]:
            if self._is_prompt_only(sequence) in full or self._is_waiting_for_prefix(sequence):
                continue
            peers = self._peers(sequence)
            if self._is_full(sequence, peers) and self._preemptible(sequence, peers) is None:
                full.add(self._is_prompt_only(sequence))
                continue
            if len(sequence.inputs) > self._longest(sequence):
                sequence.cut(*self._excess(sequence))
            found = self._find(sequence)
            if self._is_worth_waiting(sequence, found):
                assert found.pending is not None
                sequence.waits_for = (found.pending, found.pending_count)
                continue
            if not self._start(sequence, found):
                return

    def _is_waiting_for_prefix(self, sequence: Sequence) -> bool:
        """Whether the sequence waits for a prefix that is still being evaluated."""
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
        """Return the running sequences that use the same kind of slot."""
        return [
            other for other in self.running if self._is_prompt_only(other) == self._is_prompt_only(sequence)
        ]

    def _is_full(self, sequence: Sequence, peers: list[Sequence]) -> bool:
        return len(peers) >= (self._prompt_only_slots if self._is_prompt_only(sequence) else self._parallel)

    def _preemptible(self, sequence: Sequence, running: list[Sequence]) -> Sequence | None:
        """Return the sequence of `running` to preempt for this one: the last served, if of lower priority."""
        last = max(running, key=lambda other: other.rank, default=None)
        return last if last is not None and last.rank[0] > sequence.rank[0] else None

    def _find(self, sequence: Sequence) -> PrefixMatch:
        """Return the reusable prefix, which excludes the last input: the logits after it are needed."""
        if not sequence.request.cache_prompt or sequence.evaluates_all:
            return PrefixMatch()
        found = self._prefix_cache.find(sequence.cached_as, len(sequence.inputs) - 1)
        if sequence.grouped:
            found.count = group_begin(sequence.inputs, found.count)
            found.pending_count = group_begin(sequence.inputs, found.pending_count)
            found.shared = group_begin(sequence.inputs, found.shared)
        return found

    def _is_worth_waiting(self, sequence: Sequence, found: PrefixMatch) -> bool:
        if found.pending_count - found.count < _WORTH_WAITING_FOR:
            return False
        # Never wait for a sequence of lower priority, which may be preempted.
        return any(
            other.entry is found.pending and other.rank[0] <= sequence.rank[0] for other in self.running
        )

    def _start(self, sequence: Sequence, found: PrefixMatch) -> bool:
        """Start a sequence if there is room for it or no other is running; return whether it started."""
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
        self._prefix_cache.count(found)
        self.waiting.remove(sequence)
        if sequence.request.cache_prompt:
            self._prefix_cache.index(entry, sequence.cached_as)
        sequence.start(entry)
        self._turns[sequence.request.priority].served(sequence.request.client, sequence.turn)
        sequence.branch_points = self._branch_points(sequence, found)
        self.running.append(sequence)
        return True

    def _branch_points(self, sequence: Sequence, found: PrefixMatch) -> tuple[int, ...]:
        """Return after how many inputs the sequence should leave a checkpoint for other prompts.

        One is where an earlier prompt differs that could not be resumed there, unless that saves few inputs
        and costs a pass of its own. Another is before the first message that is not the system's, where
        other conversations differ. One is before the last message, which some agents move or rewrite in each
        prompt; unless it is near what was found, as where a message was added to the earlier prompt. The last
        is before what the prompt begins the answer with, such as `<think>`: templates leave it out of earlier
        turns, so that the conversation's next prompt differs there.
        """
        points = set()
        lost = found.shared - found.count
        if lost >= _WORTH_WAITING_FOR or (lost > 0 and _pauses_for_image(sequence, found.shared)):
            points.add(found.shared)
        if not self._cache.resumes_anywhere and sequence.request.cache_prompt:
            if _WORTH_WAITING_FOR <= sequence.front < sequence.prompt_length:
                points.add(sequence.front)
            before_last = sequence.prompt_length - sequence.ending
            if sequence.ending and before_last - found.count >= _WORTH_WAITING_FOR:
                points.add(before_last)
            if sequence.opening:
                points.add(sequence.prompt_length - sequence.opening)
        return tuple(sorted(point for point in points if point > found.count))

    # --- room --------------------------------------------------------------------------------------

    def _has_room(self, count: int) -> bool:
        """Whether `count` more inputs fit beside the running sequences; the only sequence always fits."""
        if not self.running:
            return True
        wanted = count + sum(other.waiting + _HEADROOM * other.generates for other in self.running)
        return self._cache.room(wanted) == wanted

    def _make_room(self) -> None:
        """Preempt sequences, last served first, until all decoding ones or the oldest prompt can continue."""
        while len(self.running) > 1:
            needed = sum(sequence.decoding for sequence in self.running)
            if not needed:
                prompts = [sequence for sequence in self.running if sequence.waiting]
                if not prompts:
                    return
                oldest = min(prompts, key=lambda sequence: sequence.rank)
                needed = first_group(oldest.inputs, oldest.evaluated)
            if self._prefix_cache.room(needed) >= needed:
                return
            self._preempt(max(self.running, key=lambda sequence: sequence.rank))

    def _preempt(self, sequence: Sequence) -> None:
        """Return a running sequence to the queue; its cache entry stays as long as there is room."""
        self._release(sequence)
        self.running.remove(sequence)
        self._enqueue(sequence)

    def _release(self, sequence: Sequence, *, forget: bool = False) -> None:
        entry, sequence.entry = sequence.entry, None
        assert entry is not None
        if forget or not sequence.request.cache_prompt:
            self._prefix_cache.drop(entry)
        else:
            keys = sequence.cached_as if sequence.exact else sequence.cached_as[: sequence.keep]
            self._prefix_cache.release(entry, keys, generates=sequence.generates)
            if self.on_release is not None and sequence.exact:
                self.on_release(sequence)

    def _pauses(self) -> dict[Sequence, int]:
        """Return after how many inputs prompts pause, because waiting or later requests share exactly those.

        A cache that forgets can be resumed only where a pass has ended, so one must end there.
        """
        wanted: dict[PrefixEntry, int] = {}
        for sequence in self.waiting:
            if sequence.waits_for is not None:
                entry, count = sequence.waits_for
                wanted[entry] = min(count, wanted.get(entry, count))
        pauses: dict[Sequence, int] = {}
        for sequence in self.running:
            assert sequence.entry is not None
            ahead = [wanted.get(sequence.entry, 0), *sequence.branch_points]
            pauses[sequence] = min((count for count in ahead if count > sequence.evaluated), default=0)
        return pauses

    # --- the end of the context ----------------------------------------------------------------------

    def _longest(self, sequence: Sequence) -> int:
        return min(sequence.context, self._context)

    def _excess(self, sequence: Sequence) -> tuple[int, int]:
        """Return the range of inputs to drop from a full context, not counting the newest."""
        count = shift_count(sequence.inputs[:-1], self._longest(sequence), sequence.keep)
        return sequence.keep, sequence.keep + count

    def _shift(self, sequence: Sequence) -> None:
        """Drop old inputs of a full context. Later ones are shifted in the cache, or evaluated again."""
        entry = sequence.entry
        assert entry is not None
        begin, end = self._excess(sequence)
        sequence.cut(begin, end)
        while True:
            try:
                self._cache.remove(entry.row, begin, end)
            except NotSupportedError:
                pass
            except CacheFullError:  # shared cells must be copied first, and none are free
                if self._prefix_cache.evict():
                    continue
            else:
                # Shifted inputs were evaluated after the dropped ones, so they must not be shared.
                self._prefix_cache.unindex(entry)
                sequence.exact = False
                entry.evaluated -= end - begin
                return
            break
        self._cache.remove(entry.row, 0)
        entry.evaluated = 0
        if sequence.request.cache_prompt:
            self._prefix_cache.unindex(entry)
            self._prefix_cache.index(entry, sequence.cached_as)
        sequence.exact = True


def _pauses_for_image(sequence: Sequence, count: int) -> bool:
    """Whether a pass ends after `count` inputs anyway, because the image that follows is not encoded yet."""
    return sequence.unread is not None and count == group_begin(sequence.inputs, sequence.unread.begin)
