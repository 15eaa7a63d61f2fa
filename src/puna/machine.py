"""What the machine has left, as far as this process may use it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import psutil

#: How C++ and torch say that memory could not be had, where it does not come as a MemoryError.
_SHORTAGE = ("bad_alloc", "allocate memory", "not enough memory", "out of memory")
#: What a process that goes on needs to be able to get.
_LEAST_BYTES = 16 << 20


def available_memory() -> int:
    """Bytes this process may still take: free memory, or what its control group leaves, if that is less."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            available = min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass  # no control group, or not ours to read
    return available


def process_memory(pid: int | None = None) -> int:
    """Bytes of memory a process has (this one by default); 0 when it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error`, or what it came of, is that memory could not be had."""
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or (isinstance(each, RuntimeError) and says_out_of_memory(str(each)))
        for each in _causes(error)
    )


def says_out_of_memory(text: str) -> bool:
    """Whether `text` is how a library reports that."""
    return any(words in text for words in _SHORTAGE)


def memory_is_short() -> bool:
    """Whether this process cannot get memory to speak of, under a limit of its own or the system's."""
    import numpy as np  # here: the server asks for nothing else in this file, and does without it

    try:
        np.empty(_LEAST_BYTES, np.uint8)  # which costs nothing: it is not written to
    except MemoryError:
        return True
    return False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
