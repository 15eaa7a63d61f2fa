"""How much work a call does, counted and not timed: the same on every machine, however busy."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any


def calls(work: Callable[[], Any]) -> Counter[str]:
    """How often `work` calls functions of Python and of C, by name.

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
