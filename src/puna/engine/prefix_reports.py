"""Reports of the prompts that can be resumed, by digests of their blocks, as changes since an earlier one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from puna.engine.prefix_tree import common_length
from puna.protocol import MAX_REPORTED_BLOCKS, PrefixReport, ReportPrefixes

if TYPE_CHECKING:
    from puna.engine.prefix_cache import PrefixCache, PrefixEntry


class PrefixReports:
    """Versions of what `prefix_cache` holds. Nothing is computed until a report is asked for."""

    def __init__(self, prefix_cache: PrefixCache, most: int = MAX_REPORTED_BLOCKS) -> None:
        """Report at most `most` blocks, and remember as many that are gone."""
        self._prefix_cache = prefix_cache
        self._most = most
        self._version = 1  # 0 is before the first report
        self._forgotten = 0  # changes up to this version are not known any more
        self._reported: dict[PrefixEntry, list[int]] = {}
        self._holders: Counter[int] = Counter()  # entries that have a block, by digest
        # The version that added or removed a block, by digest, oldest first.
        self._present: dict[int, int] = {}
        self._gone: dict[int, int] = {}

    def report(self, message: ReportPrefixes) -> PrefixReport:
        """Return what has changed since the version that `message` names."""
        self._update()
        whole = not self._forgotten <= message.since <= self._version or message.since <= 0
        since = 0 if whole else message.since
        return PrefixReport(
            id=message.id,
            version=self._version,
            added=_packed(_after(self._present, since)),
            removed=b"" if whole else _packed(_after(self._gone, since)),
            whole=whole,
        )

    def _update(self) -> None:
        """Compare all entries with what was reported of them; unchanged ones cost hardly anything."""
        found: dict[PrefixEntry, list[int]] = {}
        left = self._most
        for entry in self._prefix_cache.by_use:
            if not left:
                break
            found[entry] = self._prefix_cache.blocks(entry)[:left]
            left -= len(found[entry])
        added, removed = Counter[int](), Counter[int]()
        for entry in self._reported.keys() | found.keys():
            before, now = self._reported.get(entry, []), found.get(entry, [])
            if before != now:
                same = common_length([*before], [*now], 0)
                removed.update(before[same:])
                added.update(now[same:])
        self._reported = found
        if added == removed:
            return
        self._version += 1
        for digest in added.keys() | removed.keys():
            self._holders[digest] += added[digest] - removed[digest]
            if self._holders[digest] <= 0:
                del self._holders[digest]
                if self._present.pop(digest, None) is not None:
                    self._gone[digest] = self._version
            elif digest not in self._present:
                self._gone.pop(digest, None)
                self._present[digest] = self._version
        while len(self._gone) > self._most:
            oldest = next(iter(self._gone))
            self._forgotten = self._gone.pop(oldest)


def _after(versions: dict[int, int], since: int) -> Iterator[int]:
    """Yield the digests of versions after `since`."""
    return takewhile(lambda digest: versions[digest] > since, reversed(versions))


def _packed(digests: Iterator[int]) -> bytes:
    return np.array([*digests], "<u8").tobytes()
