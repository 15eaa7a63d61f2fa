"""What the cache remembers of requests, running and finished ones, and what of it a new request shares.

Every request has a cache sequence of its own, called a memory here. It stays when the request is over, as
long as there is room: its cells are shared with whoever begins the same way. There are more memories than
requests can run, so that a conversation need not hold a place to be remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.engine.prefixes import Key, PrefixTree
from puna.errors import CacheFileError, CacheFullError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from puna.kvcache.cache import Cache, Saved

#: Candidates looked at for one request. Only caches that forget make more than the first few of any use.
_MOST_TRIED = 32


@dataclass(eq=False)
class Memory:
    """A cache sequence. `evaluated` inputs are in it; of a running request the tree knows also later ones."""

    row: int  # the cache's number of the sequence
    evaluated: int = 0
    running: bool = False
    mark: bool = False  # it stays where it is, for those who begin the same way; see `Memories.mark`


@dataclass
class Found:
    """The best there is for a request: now, and when what is running will have come further."""

    memory: Memory | None = None
    count: int = 0  # inputs that need not be evaluated
    shared: int = 0  # inputs that somebody has evaluated, even if nobody can be resumed there any more
    coming: Memory | None = None
    coming_count: int = 0


class Memories:
    """All memories of a cache of `rows` sequences."""

    def __init__(self, cache: Cache, rows: int) -> None:
        self._cache = cache
        self.evicted = 0  # cells, so far
        self._free = list(range(rows - 1, -1, -1))
        self._idle: dict[Memory, None] = {}  # least recently used first
        self._tree: PrefixTree[Memory] = PrefixTree()

    def find(self, keys: list[Key], most: int) -> Found:
        """Who can give most of the first `most` of `keys`."""
        found = Found()
        for tried, (shared, memory) in enumerate(self._tree.search(keys)):
            shared = min(shared, most)
            if shared <= found.count or tried == _MOST_TRIED:
                break
            if memory.running and memory.evaluated < shared and shared > found.coming_count:
                found.coming, found.coming_count = memory, shared
            found.shared = max(found.shared, min(shared, memory.evaluated))
            count = self._cache.resume_point(memory.row, min(shared, memory.evaluated))
            if count > found.count:
                found.memory, found.count = memory, count
        return found

    def take(self, source: Memory | None = None, count: int = 0) -> Memory:
        """A running memory with the first `count` inputs of `source`, or less where those cannot be resumed.

        There must be a row that no running request has. It is not in the tree until `follow`.
        """
        if source is not None and not source.running and self._may_have(source, count):
            memory = source
            self._rouse(memory)
        else:
            memory = Memory(self._free_row(source))
            if source in self._idle and source.mark and count >= source.evaluated - 1:
                # Used as it is meant to be; the same prompt again evaluates its last input. Everything begins
                # like something else: sharing less than that would keep marks for ever.
                self._idle[source] = self._idle.pop(source)
        try:
            if source is not None and memory is not source:
                # This is no use of what else the source holds: what is shared stays with the new one.
                self._cache.copy_prefix(source.row, memory.row, count)
            memory.evaluated = self._cache.resume_point(memory.row, count)
            self._cache.remove(memory.row, memory.evaluated)
        except BaseException:  # a defect; the row must not be lost because of it
            self.drop(memory)
            raise
        memory.running = True
        return memory

    def follow(self, memory: Memory, keys: list[Key]) -> None:
        """The inputs of a running memory are, or will be, those of `keys`; others may share them."""
        self._tree.insert(memory, keys)

    def extend(self, memory: Memory, key: Key) -> None:
        """A running memory that is followed will go on with `key`."""
        if memory in self._tree:
            self._tree.extend(memory, [key])

    def mark(self, memory: Memory, keys: list[Key]) -> None:
        """A running memory, which holds just `keys`, goes on; others shall be able to resume here later.

        A cache that forgets needs a row for that, which has what the next input sees and goes like any other
        when it was not used for long.
        """
        for shared, other in self._tree.search(keys):
            if shared < len(keys):
                break
            if other in self._idle and other.evaluated == len(keys):
                other.mark = True
                return
        if self._free or self._idle:
            mark = self.take(memory, len(keys))
            self.rest(mark, keys)
            mark.mark = True

    def unfollow(self, memory: Memory) -> None:
        """What a running memory holds is nothing to share any more."""
        if memory in self._tree:
            self._tree.remove(memory)

    def rest(self, memory: Memory, keys: list[Key], *, lasting: bool = True) -> None:
        """The request is over; its memory's first inputs, which are `keys`, stay as long as there is room.

        There may be more keys than evaluated inputs. What is not `lasting` goes before all others.
        """
        self.unfollow(memory)
        memory.running = False
        useful = self._cache.resume_point(memory.row, min(len(keys), memory.evaluated))
        if useful < memory.evaluated:
            memory.evaluated = useful
            self._cache.remove(memory.row, useful)
        if memory.evaluated:
            self._tree.insert(memory, keys[: memory.evaluated])
            self._idle[memory] = None
            if not lasting:
                self._idle = {memory: None, **self._idle}
        else:
            self.drop(memory)

    def drop(self, memory: Memory) -> None:
        """Forget all a memory holds; its row is free."""
        self.unfollow(memory)
        self._idle.pop(memory, None)
        self._cache.remove(memory.row, 0)
        self._free.append(memory.row)

    def saved(self, keys: Sequence[Key]) -> Saved | None:
        """What a memory holds whose inputs are exactly `keys`, copied; None without one."""
        for shared, memory in self._tree.search([*keys]):
            if shared < len(keys):
                break
            if memory.evaluated == len(keys):
                return self._cache.save(memory.row)
        return None

    def adopt(self, saved: Saved, keys: Sequence[Key]) -> None:
        """Remember what was saved, whose inputs were `keys`, as if a request had just left it behind.

        Raises `CacheFileError` when it does not fit the cache, and `CacheFullError` when there is no room
        beside what is running.
        """
        if self.find([*keys], len(keys)).count == len(keys):
            return
        if not (self._free or self._idle):
            raise CacheFullError("all places are taken by running requests; try again when one has ended")
        memory = Memory(self._free_row(None), len(keys))
        try:
            self._restore(memory.row, saved)
            length = self._cache.length(memory.row)
            if length != len(keys):
                raise CacheFileError(f"{length} positions of {len(keys)} tokens; the file is damaged")
        except BaseException:
            self.drop(memory)
            raise
        self._tree.insert(memory, [*keys])
        self._idle[memory] = None

    def _restore(self, row: int, saved: Saved) -> None:
        while True:
            try:
                restore = self._cache.plan_restore(row, saved)
            except CacheFullError:
                if not self.evict():
                    raise
            else:
                restore()
                return

    def evict(self, spared: Memory | None = None) -> bool:
        """Make room by dropping the idle memory least recently used, but not `spared`. False without any.

        What it shares with others stays with them, so no leaf of the tree goes before it was its turn.
        """
        oldest = next((memory for memory in self._idle if memory is not spared), None)
        if oldest is None:
            return False
        self._forget(oldest)
        return True

    def room(self, wanted: int) -> int:
        """How many rows of `wanted` there is room for, after forgetting what has to be forgotten."""
        while (room := self._cache.room(wanted)) < wanted and self.evict():
            pass
        return room

    def _may_have(self, source: Memory, count: int) -> bool:
        """Whether a request may go on in `source` itself: nothing is lost, or there is no other row."""
        nothing_lost = source.evaluated == count and not source.mark
        return nothing_lost or not (self._free or len(self._idle) > 1)

    def _free_row(self, spared: Memory | None) -> int:
        if not self._free:
            idle = [memory for memory in self._idle if memory is not spared]
            # Best one of which somebody else has all, and can be resumed there.
            redundant = (memory for memory in idle if self._tree.covered(memory) and not memory.mark)
            self._forget(next(redundant, idle[0]))
        return self._free.pop()

    def _forget(self, memory: Memory) -> None:
        """Drop an idle memory for others, and count the cells that nobody holds any more."""
        before = self._used()
        self.drop(memory)
        self.evicted += before - self._used()

    def _used(self) -> int:
        return sum(counts.used for counts in self._cache.counts())

    def _rouse(self, memory: Memory) -> None:
        memory.mark = False
        del self._idle[memory]
        self._tree.remove(memory)
