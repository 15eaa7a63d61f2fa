"""The machine's processors, memory and processes, and detection of memory shortage."""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterator
from functools import cache

import psutil

from puna.system.memory import available_address_space, group_limit, group_memory
from puna.system.processors import usable_processors

#: Messages of libraries about a failed allocation, which is not always a MemoryError.
_SHORTAGE = ("bad_alloc", "allocate memory", "not enough memory", "out of memory")
#: A process that cannot allocate this much cannot continue.
_PROBE_BYTES = 16 << 20


_log = logging.getLogger(__name__)

_most: int | None = None  # bytes of this process, by `allow_memory`


def usable_threads(wanted: int) -> int:
    """Limit `wanted` threads to the processors this process may use; more would only wait for each other."""
    processors = usable_processors()
    if wanted > processors:
        _say_once(f"{wanted} threads were requested; using {processors}, one for each processor")
    return min(wanted, processors)


@cache
def _say_once(text: str) -> None:
    _log.warning(text)


def available_memory() -> int:
    """Return how many bytes this process may still allocate.

    This is the available memory, reduced by limits of the control group, of address space (`ulimit -v`)
    and of `allow_memory`.
    """
    available = int(psutil.virtual_memory().available)
    of_group = group_memory()
    if of_group is not None:
        available = min(available, of_group)
    if _most is not None:
        available = min(available, max(0, _most - process_memory()))
    return min(available, available_address_space())


def allow_memory(more: int | None) -> None:
    """Allow this process to take `more` bytes from now on, or all that there are."""
    global _most
    _most = None if more is None else process_memory() + more


def total_memory() -> int:
    """Return how many bytes the programs of this machine, or of this control group, may take together."""
    total = int(psutil.virtual_memory().total)
    of_group = group_limit()
    return total if of_group is None else min(total, of_group)


def process_memory(pid: int | None = None) -> int:
    """Return the resident bytes of a process (default: this one), or 0 if it has ended."""
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
    import numpy as np  # not at the top: the server uses this module without numpy

    try:
        np.empty(_PROBE_BYTES, np.uint8)  # costs nothing, since it is never written
    except MemoryError:
        return True
    return False


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
