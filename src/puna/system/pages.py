"""Pages of mapped memory: when they are taken, and when they are given back."""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Final

from puna.system import has_linux

#: Flags of memory of this process that takes none of the machine's until it is written.
UNRESERVED: Final = (
    mmap.MAP_PRIVATE
    | mmap.MAP_ANONYMOUS
    | getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
)


def use_large_pages(mapped: mmap.mmap, size: int) -> None:
    """Ask for large pages for the first `size` bytes: faster to look up, provided 2 MiB at a time."""
    if has_linux() and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            mapped.madvise(mmap.MADV_HUGEPAGE, 0, size)


def give_back(mapped: mmap.mmap, begin: int, size: int) -> None:
    """Give whole pages of memory back to the system; they lose their content."""
    advice = mmap.MADV_DONTNEED if has_linux() else getattr(mmap, "MADV_FREE", mmap.MADV_DONTNEED)
    mapped.madvise(advice, begin, size)


def forget(mapped: mmap.mmap, begin: int, size: int) -> None:
    """Have the system drop pages of a file from this process; it reads them again when they are used."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # saves memory, nothing depends on it
        mapped.madvise(mmap.MADV_DONTNEED, begin, size)
