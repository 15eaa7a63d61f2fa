"""Wait for events, however long they take on a busy machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

#: How long a test waits for an event that must happen; an earlier event ends the wait.
PATIENCE_S = 120.0


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Poll until `condition` holds. Raises AssertionError naming `what` on timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.02)


def wait_until_asleep(pid: int, *, except_for: int = 0) -> None:
    """Wait until every thread of the process, except the one with id `except_for`, sleeps and no longer wakes
    up.

    A spinning thread never appears asleep, and a thread that polls now and then is seen waking up.
    """

    def asleep() -> bool:
        before = _wakes(pid, except_for)
        time.sleep(0.5)
        return None not in before.values() and before == _wakes(pid, except_for)

    wait_until(asleep, "all threads sleeping")


def _wakes(pid: int, except_for: int) -> dict[str, tuple[str, ...] | None]:
    """Return how often each thread was switched off a core; None for a running or runnable thread."""
    found: dict[str, tuple[str, ...] | None] = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        if thread.name == str(except_for):
            continue
        status = (thread / "status").read_text()
        counts = re.findall(r"ctxt_switches:\s*(\d+)", status)
        found[thread.name] = tuple(counts) if re.search(r"^State:\s*S", status, re.MULTILINE) else None
    return found
