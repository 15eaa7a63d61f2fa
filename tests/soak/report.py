"""The report of a soak: counts of requests and events, and failures."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.soak.asking import LIMIT_S

#: The soak ends after this many failures.
MAX_FAILURES = 10


class Report:
    """Counts and failures collected by all threads of a soak."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()  # by (kind, outcome)
        self.events: Counter[str] = Counter()
        self.tokens = 0
        self.longest: tuple[float, str] = (0.0, "none")
        self.failures: list[str] = []
        self._under_way: dict[int, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def count(self, kind: str, outcome: str, tokens: int = 0) -> None:
        with self._lock:
            self.counts[kind, outcome] += 1
            self.tokens += tokens

    def event(self, what: str) -> None:
        with self._lock:
            self.events[what] += 1

    def fail(self, what: str) -> None:
        with self._lock:
            self.failures.append(what)

    @property
    def hopeless(self) -> bool:
        return len(self.failures) >= MAX_FAILURES

    @contextmanager
    def request(self, what: str) -> Iterator[None]:
        """Wrap a request: measure its time and record any exception as a failure."""
        thread_id, began = threading.get_ident(), time.monotonic()
        self._under_way[thread_id] = (began, what)
        try:
            yield
        except Exception as error:
            trace = "".join(traceback.format_exception(error)[-8:])
            self.fail(f"{what}: {type(error).__name__}: {error}\n{trace}")
        finally:
            del self._under_way[thread_id]
            with self._lock:
                self.longest = max(self.longest, (time.monotonic() - began, what))

    def hanging(self) -> str | None:
        """Return a message about a request that exceeds the time limit, or None."""
        now = time.monotonic()
        for began, what in list(self._under_way.values()):
            if now - began > LIMIT_S:
                return f"{what}: no answer for {now - began:.0f} s"
        return None

    def summary(self) -> str:
        """Return a table of all counts."""
        right = f", {self.tokens} tokens in right answers" * bool(self.tokens)  # not all users count them
        lines = [f"{sum(self.counts.values())} requests{right}"]
        for (kind, outcome), count in sorted(self.counts.items()):
            lines.append(f"  {kind:<12} {outcome:<12} {count:>7}")
        lines += [f"  {what:<25} {count:>7}" for what, count in sorted(self.events.items())]
        lines.append(f"  the longest request took {self.longest[0]:.1f} s: {self.longest[1]}")
        return "\n".join(lines)
