"""The machine's processors; its memory and that of processes, and detection of running out of it."""

from __future__ import annotations

import errno
import logging
import os
import resource
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import psutil

#: Messages of libraries about a failed allocation, which is not always a MemoryError.
_SHORTAGE = ("bad_alloc", "allocate memory", "not enough memory", "out of memory")
#: A process that cannot allocate this much cannot continue.
_PROBE_BYTES = 16 << 20
#: Half of what processors with addresses of 48 bits leave to a process.
_ADDRESS_SPACE = 1 << 46


_log = logging.getLogger(__name__)


def usable_threads(wanted: int) -> int:
    """`wanted` threads, but no more than processors this process may use: more only wait for each other."""
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if wanted > processors:
        _say_once(f"{wanted} threads were asked for; {processors} are used, one for each processor")
    return min(wanted, processors)


@cache
def _say_once(text: str) -> None:
    _log.warning(text)


def available_memory() -> int:
    """Return how many bytes this process may still allocate.

    That is the available memory, or less where the control group or a limit of address space (`ulimit -v`)
    says so.
    """
    available = int(psutil.virtual_memory().available)
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit != "max":
            used = int(Path("/sys/fs/cgroup/memory.current").read_text())
            available = min(available, max(0, int(limit) - used))
    except (OSError, ValueError):
        pass  # no control group, or not readable
    return min(available, available_address_space())


def available_address_space() -> int:
    """Return how many bytes this process may still map, whether or not memory is behind them."""
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return _ADDRESS_SPACE
    return max(0, limit_bytes - int(psutil.Process().memory_info().vms))


def process_memory(pid: int | None = None) -> int:
    """Resident bytes of a process (default: this one); 0 if it has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` or one of its causes is a failed memory allocation."""
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or (isinstance(each, RuntimeError) and says_out_of_memory(str(each)))
        for each in _causes(error)
    )


def says_out_of_memory(text: str) -> bool:
    """Whether `text` is a library's message about a failed memory allocation."""
    return any(words in text for words in _SHORTAGE)


def memory_is_short() -> bool:
    """Whether even a small allocation fails, because of the process's own limit or the system's."""
    import numpy as np  # imported here because the server, which uses the rest of this file, needs no numpy

    try:
        np.empty(_PROBE_BYTES, np.uint8)  # costs nothing, as it is never written to
    except MemoryError:
        return True
    return False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
