"""The work of a call, counted rather than timed: the same on every machine, however busy."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any


def calls(work: Callable[[], Any]) -> Counter[str]:
    """Count calls of Python and C functions in `work`, by name.

    Work inside a C function does not count.
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
    """Whether the work `make(size)` grows about linearly: 8 times the size takes less than 24 times as long.

    For work inside C functions, where counting calls says nothing. Quadratic work takes 64 times as long, so
    a measurement may be off by a factor of 2.6 either way; it is the least processor time of a few runs. It
    uses the smallest size from `least` to `most` that takes long enough to measure; shorter work passes.
    The first size that needs new memory from the system takes longer than the smaller ones, so four times
    that size must take too long as well to count as a failure.
    """
    size = least
    while (brief := _processor_s(make(_GROWTH * size), 1) < 0.01) and size < most:
        size *= 2
    return brief or not all(_too_long(make, each) for _ in range(3) for each in (size, 4 * size))


_GROWTH = 8


def _too_long(make: Callable[[int], Callable[[], Any]], size: int) -> bool:
    return _processor_s(make(_GROWTH * size), 2) >= 3 * _GROWTH * _processor_s(make(size), 3)


def _processor_s(work: Callable[[], Any], repeated: int) -> float:
    """Return the least processor time of `repeated` runs."""
    found = []
    for _ in range(repeated):
        begin_s = time.thread_time()
        work()
        found.append(time.thread_time() - begin_s)
    return min(found)
