"""The prefix cache: cached sequences of running and finished requests, reused by prompts that begin alike.

Every request has a cache sequence of its own, its entry. The entry outlives the request as long as there is
room, and its cells are shared with every prompt that begins the same way. There are more entries than running
requests, so a conversation is remembered without occupying a slot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from puna.engine.prefix_tree import Key, PrefixTree
from puna.errors import CacheFileError, CacheFullError, NotSupportedError
from puna.kvcache.cache import Saving
from puna.prefix_blocks import BLOCK, block_digests
from puna.protocol import MAX_LIVE_NODES, LivePrefixes, LivePrefixNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from puna.kvcache.cache import Cache
    from puna.kvcache.saved import Saved

#: Candidates examined per request. More than a few help only with caches that forget.
_MAX_CANDIDATES = 32


@dataclass(eq=False)
class PrefixEntry:
    """A cache sequence with `evaluated` inputs. While it is running, the tree has its later inputs too."""

    row: int  # number of the cache sequence
    evaluated: int = 0
    running: bool = False
    hits: int = 0  # requests that reused it
    checkpoint: bool = False  # copied, never continued in place; see `PrefixCache.checkpoint`
    digests: list[int] = field(default_factory=list)  # of its first blocks, as far as they were asked for


@dataclass
class PrefixMatch:
    """The longest reusable prefix of a request, now and once running requests have evaluated more."""

    entry: PrefixEntry | None = None
    count: int = 0  # inputs that can be reused
    shared: int = 0  # inputs that some entry has evaluated, even if none can be resumed there any more
    pending: PrefixEntry | None = None
    pending_count: int = 0


class PrefixCache:
    """The entries of a cache with `rows` sequences."""

    def __init__(self, cache: Cache, rows: int) -> None:
        self._cache = cache
        self.evicted = 0  # cells, so far
        self.hits = 0  # requests that reused a prefix, so far
        self.misses = 0
        self.reused_tokens = 0
        self._free = list(range(rows - 1, -1, -1))
        self._idle: dict[PrefixEntry, None] = {}  # least recently used first
        self._tree: PrefixTree[PrefixEntry] = PrefixTree()

    def find(self, keys: list[Key], most: int) -> PrefixMatch:
        """Return the entry that shares the most of the first `most` keys."""
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
        """Return a running entry with the first `count` inputs of `source`, or fewer if that cannot resume.

        At least one row must not be running. The entry is not in the tree until `index`.
        """
        if source is not None and not source.running and self._can_take_over(source, count):
            entry = source
            self._reactivate(entry)
        else:
            entry = PrefixEntry(self._free_row(source))
            if source in self._idle and source.checkpoint and count >= source.evaluated - 1:
                # A checkpoint reused in full counts as recently used; a repeated prompt still evaluates its
                # last input. Partial reuse does not count, or the checkpoint would never be evicted.
                self._idle[source] = self._idle.pop(source)
        try:
            if source is not None and entry is not source:
                # The source is not marked as used: the new entry keeps the shared cells anyway.
                self._cache.copy_prefix(source.row, entry.row, count)
                entry.digests = source.digests[: count // BLOCK]
            entry.evaluated = self._cache.resume_point(entry.row, count)
            self._cache.remove(entry.row, entry.evaluated)
        except BaseException:  # a defect, but the row must not leak
            self.drop(entry)
            raise
        entry.running = True
        return entry

    def index(self, entry: PrefixEntry, keys: list[Key]) -> None:
        """Add a running entry, whose inputs are or will be `keys`, to the tree for other requests to find."""
        del entry.digests[entry.evaluated // BLOCK :]
        self._tree.insert(entry, keys)

    def count(self, found: PrefixMatch) -> None:
        """Count a request that starts with what was `found` for it."""
        if found.entry is None:
            self.misses += 1
            return
        self.hits += 1
        self.reused_tokens += found.count
        found.entry.hits += 1

    @property
    def idle(self) -> Iterable[PrefixEntry]:
        """The entries of finished requests, the least recently used first."""
        return self._idle.keys()

    @property
    def by_use(self) -> Iterable[PrefixEntry]:
        """All entries that requests can find, the most recently used first."""
        yield from [entry for entry in self._tree if entry.running]
        yield from reversed(self._idle)

    def blocks(self, entry: PrefixEntry) -> list[int]:
        """Return the digests of the blocks after which, or in the next block, `entry` can be resumed.

        They are kept with the entry, so that only those of new inputs are computed.
        """
        known, count = entry.digests, entry.evaluated // BLOCK
        if len(known) < count:
            last = known[-1:]
            keys = self._tree.keys(entry, (len(known) - len(last)) * BLOCK, count * BLOCK)
            known += block_digests(keys, last)[len(last) :]
        if self._cache.resumes_anywhere:
            return known[:count]
        found, position = [], entry.evaluated
        while (position := self._cache.resume_point(entry.row, position)) >= BLOCK:
            found.append(known[position // BLOCK - 1])
            position = position // BLOCK * BLOCK - 1
        return found[::-1]

    def picture(self) -> LivePrefixes:
        """Return the tree as plain data; the smallest ends of a very large one are left out."""
        numbers: dict[int, int] = {}
        nodes: list[LivePrefixNode] = []
        for node in islice(self._tree.nodes(), MAX_LIVE_NODES):
            numbers[id(node)] = len(nodes)
            parent = node.parent
            assert parent is not None, "the root is not among them"
            hits, rows = sum(entry.hits for entry in node.holders), [entry.row for entry in node.holders]
            nodes.append(LivePrefixNode(numbers.get(id(parent), -1), parent.end, node.end, hits, rows))
        return LivePrefixes(nodes, self.hits, self.misses, self.reused_tokens, self.evicted)

    def extend(self, entry: PrefixEntry, key: Key) -> None:
        """Append `key` to an indexed running entry."""
        if entry in self._tree:
            self._tree.extend(entry, [key])

    def checkpoint(self, entry: PrefixEntry, keys: list[Key]) -> None:
        """Make `keys`, the inputs of a running entry that is about to continue, a place to resume at.

        A cache that forgets needs a separate entry for that, which is evicted like any other.
        """
        for shared, other in self._tree.search(keys):
            if shared < len(keys):
                break
            if other in self._idle and other.evaluated == len(keys):
                other.checkpoint = True
                return
        if self._free or self._idle:
            entry = self.acquire(entry, len(keys))
            self.release(entry, keys)
            entry.checkpoint = True

    def unindex(self, entry: PrefixEntry) -> None:
        """Hide a running entry from other requests, because its contents may no longer be shared."""
        if entry in self._tree:
            self._tree.remove(entry)

    def release(self, entry: PrefixEntry, keys: list[Key], *, generates: bool = True) -> None:
        """Keep the inputs `keys` of a finished request's entry until it is evicted.

        There may be more keys than evaluated inputs. Entries that did not generate are evicted first.
        """
        self.unindex(entry)
        entry.running = False
        useful = self._cache.resume_point(entry.row, min(len(keys), entry.evaluated))
        if useful < entry.evaluated:
            entry.evaluated = useful
            self._cache.remove(entry.row, useful)
        if entry.evaluated:
            del entry.digests[entry.evaluated // BLOCK :]
            self._tree.insert(entry, keys[: entry.evaluated])
            self._idle[entry] = None
            if not generates:
                self._idle = {entry: None, **self._idle}
        else:
            self.drop(entry)

    def drop(self, entry: PrefixEntry) -> None:
        """Remove an entry with all it holds, and free its row."""
        self.unindex(entry)
        self._idle.pop(entry, None)
        self._cache.remove(entry.row, 0)
        self._free.append(entry.row)

    def snapshot(self, keys: Sequence[Key]) -> Saved | None:
        """Return a copy of the entry with exactly the inputs `keys`, if there is one."""
        for shared, entry in self._tree.search([*keys]):
            if shared < len(keys):
                break
            if entry.evaluated == len(keys):
                return self._saving.save(entry.row)
        return None

    def restore(self, saved: Saved, keys: Sequence[Key]) -> None:
        """Add a saved entry with inputs `keys`, as if a request with them had just ended.

        Raises `CacheFileError` when it does not fit the cache, and `CacheFullError` when running requests
        leave no room for it.
        """
        if self.find([*keys], len(keys)).count == len(keys):
            return
        if not (self._free or self._idle):
            raise CacheFullError("running requests use all cache sequences; try again when one has ended")
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

    @property
    def _saving(self) -> Saving:
        if not isinstance(self._cache, Saving):
            raise NotSupportedError("the cache of this model cannot be saved")
        return self._cache

    def _restore(self, row: int, saved: Saved) -> None:
        while True:
            try:
                restore = self._saving.plan_restore(row, saved)
            except CacheFullError:
                if not self.evict():
                    raise
            else:
                restore()
                return

    def evict(self, except_for: PrefixEntry | None = None) -> bool:
        """Drop the least recently used idle entry except `except_for`; return False if there is none.

        Cells shared with other entries stay with them, so only leaves of the tree are lost.
        """
        oldest = next((entry for entry in self._idle if entry is not except_for), None)
        if oldest is None:
            return False
        self._evict(oldest)
        return True

    def room(self, wanted: int) -> int:
        """Return how many of `wanted` batch rows there is room for, evicting entries as necessary."""
        while (room := self._cache.room(wanted)) < wanted and self.evict():
            pass
        return room

    def _can_take_over(self, source: PrefixEntry, count: int) -> bool:
        """Whether to continue in `source` itself, because nothing is lost or no other row is left."""
        nothing_lost = source.evaluated == count and not source.checkpoint
        return nothing_lost or not (self._free or len(self._idle) > 1)

    def _free_row(self, except_for: PrefixEntry | None) -> int:
        if not self._free:
            idle = [entry for entry in self._idle if entry is not except_for]
            # Prefer an entry whose inputs another one holds too.
            redundant = (entry for entry in idle if self._tree.covered(entry) and not entry.checkpoint)
            self._evict(next(redundant, idle[0]))
        return self._free.pop()

    def _evict(self, entry: PrefixEntry) -> None:
        """Drop an idle entry and count the freed cells."""
        before = self._used()
        self.drop(entry)
        self.evicted += before - self._used()

    def _used(self) -> int:
        return sum(counts.used for counts in self._cache.counts())

    def _reactivate(self, entry: PrefixEntry) -> None:
        entry.checkpoint = False
        del self._idle[entry]
        self._tree.remove(entry)
