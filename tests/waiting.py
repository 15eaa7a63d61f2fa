"""Waiting for what happens, however long that takes on a busy machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

#: How long a test waits for what must come; what comes earlier is not waited for.
PATIENCE_S = 120.0


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Look again and again until `condition` holds. Raises AssertionError naming `what` if it never does."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.02)


def wait_until_asleep(pid: int, *, except_for: int = 0) -> None:
    """Until no thread of the process, but for one with this id, runs or wakes up any more.

    A thread that spins is never seen asleep, and one that looks for work now and then is seen to wake up.
    """

    def asleep() -> bool:
        before = _wakes(pid, except_for)
        time.sleep(0.5)
        return None not in before.values() and before == _wakes(pid, except_for)

    wait_until(asleep, "the sleep of all threads")


def _wakes(pid: int, except_for: int) -> dict[str, tuple[str, ...] | None]:
    """Return how often each thread was taken off a core; None for a running or runnable one."""
    found: dict[str, tuple[str, ...] | None] = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        if thread.name == str(except_for):
            continue
        status = (thread / "status").read_text()
        counts = re.findall(r"ctxt_switches:\s*(\d+)", status)
        found[thread.name] = tuple(counts) if re.search(r"^State:\s*S", status, re.MULTILINE) else None
    return found
