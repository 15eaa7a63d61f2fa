"""What the cache remembers of requests, running and finished ones, and what of it a new request shares.

Every request has a cache sequence of its own, called a memory here. It stays when the request is over, as
long as there is room: its cells are shared with whoever begins the same way. There are more memories than
requests can run, so that a conversation need not hold a place to be remembered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from puna.engine.prefix_tree import Key, PrefixTree
from puna.errors import CacheFileError, CacheFullError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from puna.kvcache.cache import Cache, Saved

#: Candidates looked at for one request. Only caches that forget make more than the first few of any use.
_MAX_CANDIDATES = 32


@dataclass(eq=False)
class PrefixEntry:
    """A cache sequence. `evaluated` inputs are in it; of a running request the tree knows also later ones."""

    row: int  # the cache's number of the sequence
    evaluated: int = 0
    running: bool = False
    mark: bool = False  # it stays where it is, for those who begin the same way; see `Memories.mark`


@dataclass
class PrefixMatch:
    """The best there is for a request: now, and when what is running will have come further."""

    entry: PrefixEntry | None = None
    count: int = 0  # inputs that need not be evaluated
    shared: int = 0  # inputs that somebody has evaluated, even if nobody can be resumed there any more
    pending: PrefixEntry | None = None
    pending_count: int = 0


class PrefixCache:
    """All memories of a cache of `rows` sequences."""

    def __init__(self, cache: Cache, rows: int) -> None:
        self._cache = cache
        self.evicted = 0  # cells, so far
        self._free = list(range(rows - 1, -1, -1))
        self._idle: dict[PrefixEntry, None] = {}  # least recently used first
        self._tree: PrefixTree[PrefixEntry] = PrefixTree()

    def find(self, keys: list[Key], most: int) -> PrefixMatch:
        """Who can give most of the first `most` of `keys`."""
        found = PrefixMatch()
        for tried, (shared, entry) in enumerate(self._tree.search(keys)):
            shared = min(shared, most)
            if shared <= found.count or tried == _MAX_CANDIDATES:
                break
            if entry.running and entry.evaluated < shared and shared > found.pending_count:
                found.pending, found.pending_count = entry, shared
            found.shared = max(found.shared, min(shared, entry.evaluated))
            count = self._cache.resume_point(entry.row, min(shared, entry.evaluated))
            if count > found.count:
                found.entry, found.count = entry, count
        return found

    def acquire(self, source: PrefixEntry | None = None, count: int = 0) -> PrefixEntry:
        """A running memory with the first `count` inputs of `source`, or less where those cannot be resumed.

        There must be a row that no running request has. It is not in the tree until `follow`.
        """
        if source is not None and not source.running and self._can_take_over(source, count):
            entry = source
            self._reactivate(entry)
        else:
            entry = PrefixEntry(self._free_row(source))
            if source in self._idle and source.mark and count >= source.evaluated - 1:
                # Used as it is meant to be; the same prompt again evaluates its last input. Everything begins
                # like something else: sharing less than that would keep marks for ever.
                self._idle[source] = self._idle.pop(source)
        try:
            if source is not None and entry is not source:
                # This is no use of what else the source holds: what is shared stays with the new one.
                self._cache.copy_prefix(source.row, entry.row, count)
            entry.evaluated = self._cache.resume_point(entry.row, count)
            self._cache.remove(entry.row, entry.evaluated)
        except BaseException:  # a defect; the row must not be lost because of it
            self.drop(entry)
            raise
        entry.running = True
        return entry

    def index(self, entry: PrefixEntry, keys: list[Key]) -> None:
        """The inputs of a running memory are, or will be, those of `keys`; others may share them."""
        self._tree.insert(entry, keys)

    def extend(self, entry: PrefixEntry, key: Key) -> None:
        """A running memory that is followed will go on with `key`."""
        if entry in self._tree:
            self._tree.extend(entry, [key])

    def checkpoint(self, entry: PrefixEntry, keys: list[Key]) -> None:
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
            mark = self.acquire(entry, len(keys))
            self.release(mark, keys)
            mark.mark = True

    def unindex(self, entry: PrefixEntry) -> None:
        """What a running memory holds is nothing to share any more."""
        if entry in self._tree:
            self._tree.remove(entry)

    def release(self, entry: PrefixEntry, keys: list[Key], *, generates: bool = True) -> None:
        """The request is over; its memory's first inputs, which are `keys`, stay as long as there is room.

        There may be more keys than evaluated inputs. What is not `lasting` goes before all others.
        """
        self.unindex(entry)
        entry.running = False
        if len(keys) < entry.evaluated:
            entry.evaluated = self._cache.resume_point(entry.row, len(keys))
            self._cache.remove(entry.row, entry.evaluated)
        if entry.evaluated:
            self._tree.insert(entry, keys[: entry.evaluated])
            self._idle[entry] = None
            if not generates:
                self._idle = {entry: None, **self._idle}
        else:
            self.drop(entry)

    def drop(self, entry: PrefixEntry) -> None:
        """Forget all a memory holds; its row is free."""
        self.unindex(entry)
        self._idle.pop(entry, None)
        self._cache.remove(entry.row, 0)
        self._free.append(entry.row)

    def snapshot(self, keys: Sequence[Key]) -> Saved | None:
        """What a memory holds whose inputs are exactly `keys`, copied; None without one."""
        for shared, entry in self._tree.search([*keys]):
            if shared < len(keys):
                break
            if entry.evaluated == len(keys):
                return self._cache.save(entry.row)
        return None

    def restore(self, saved: Saved, keys: Sequence[Key]) -> None:
        """Remember what was saved, whose inputs were `keys`, as if a request had just left it behind.

        Raises `CacheFileError` when it does not fit the cache, and `CacheFullError` when there is no room
        beside what is running.
        """
        if self.find([*keys], len(keys)).count == len(keys):
            return
        if not (self._free or self._idle):
            raise CacheFullError("all places are taken by running requests; try again when one has ended")
        entry = PrefixEntry(self._free_row(None), len(keys))
        try:
            self._restore(entry.row, saved)
            length = self._cache.length(entry.row)
            if length != len(keys):
                raise CacheFileError(f"{length} positions of {len(keys)} tokens; the file is damaged")
        except BaseException:
            self.drop(entry)
            raise
        self._tree.insert(entry, [*keys])
        self._idle[entry] = None

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

    def evict(self, except_for: PrefixEntry | None = None) -> bool:
        """Make room by dropping the idle memory least recently used, but not `spared`. False without any.

        What it shares with others stays with them, so no leaf of the tree goes before it was its turn.
        """
        oldest = next((entry for entry in self._idle if entry is not except_for), None)
        if oldest is None:
            return False
        self._evict(oldest)
        return True

    def room(self, wanted: int) -> int:
        """How many rows of `wanted` there is room for, after forgetting what has to be forgotten."""
        while (room := self._cache.room(wanted)) < wanted and self.evict():
            pass
        return room

    def _can_take_over(self, source: PrefixEntry, count: int) -> bool:
        """Whether a request may go on in `source` itself: nothing is lost, or there is no other row."""
        nothing_lost = source.evaluated == count and not source.mark
        return nothing_lost or not (self._free or len(self._idle) > 1)

    def _free_row(self, except_for: PrefixEntry | None) -> int:
        if not self._free:
            idle = [entry for entry in self._idle if entry is not except_for]
            # Best one of which somebody else has all, and can be resumed there.
            redundant = (entry for entry in idle if self._tree.covered(entry) and not entry.mark)
            self._evict(next(redundant, idle[0]))
        return self._free.pop()

    def _evict(self, entry: PrefixEntry) -> None:
        """Drop an idle memory for others, and count the cells that nobody holds any more."""
        before = self._used()
        self.drop(entry)
        self.evicted += before - self._used()

    def _used(self) -> int:
        return sum(counts.used for counts in self._cache.counts())

    def _reactivate(self, entry: PrefixEntry) -> None:
        entry.mark = False
        del self._idle[entry]
        self._tree.remove(entry)
