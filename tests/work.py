"""Work of a call, counted instead of timed, and so the same on every machine, however busy."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any


def calls(work: Callable[[], Any]) -> Counter[str]:
    """Count calls of Python and C functions in `work`, by name.

    What one C function does inside is not seen.
    """
    counted: Counter[str] = Counter()

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            counted[frame.f_code.co_name] += 1
        elif event == "c_call":
            counted[argument.__name__] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted


def proportional(make: Callable[[int], Callable[[], Any]], least: int = 256, most: int = 1 << 17) -> bool:
    """Whether the work `make(size)` grows about as its size: 8 times the size takes less than 24 times.

    For what happens inside C functions, where calls say nothing. Anything quadratic takes 64 times as long,
    so a measurement may be wrong by a factor of 2.6 either way; it is of processor time, and the least of a
    few. It is made at the smallest size from `least` to `most` that can be measured, and too short is no
    trouble. Where a size is the first that needs new memory of the system, it takes longer than the smaller
    ones: so four times that size must take too long as well.
    """
    size = least
    while (brief := _processor_s(make(_GROWTH * size), 1) < 0.01) and size < most:
        size *= 2
    return brief or not all(_too_long(make, each) for _ in range(3) for each in (size, 4 * size))


_GROWTH = 8


def _too_long(make: Callable[[int], Callable[[], Any]], size: int) -> bool:
    return _processor_s(make(_GROWTH * size), 2) >= 3 * _GROWTH * _processor_s(make(size), 3)


def _processor_s(work: Callable[[], Any], repeated: int) -> float:
    """The least processor time of `repeated` runs."""
    found = []
    for _ in range(repeated):
        begin_s = time.thread_time()
        work()
        found.append(time.thread_time() - begin_s)
    return min(found)
