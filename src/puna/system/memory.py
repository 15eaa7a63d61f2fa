"""Memory of this process: how much it has and may take, and limits that raise MemoryError."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import resource
import select
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from puna.system import has_linux, text_of

if TYPE_CHECKING:
    import psutil

#: Half of the address space of a process on processors with 48-bit addresses.
_ADDRESS_SPACE: Final = 1 << 46
#: How often memory is compared with a limit that the system does not enforce.
_LOOK_S: Final = 0.02
#: Time to give memory back after such a limit has raised MemoryError, before it does so again.
_HANDLING_S: Final = 1.0
#: The signal that ends a process within `memory_limit` where the system does not fail its allocations.
MEMORY_SIGNAL: Final = signal.SIGUSR2
_LIMIT: Final = struct.Struct("<Q")
#: A process has fewer open files.
_DESCRIPTORS: Final = 1 << 16


def group_memory(root: Path = Path("/")) -> int | None:
    """Return how many bytes the control group of this process, and those around it, may still take.

    None without a limit. The files of the system are below `root`.
    """
    return min((max(0, limit - max(0, taken)) for limit, taken in _groups(root)), default=None)


def group_limit(root: Path = Path("/")) -> int | None:
    """Return how many bytes the control group of this process may take in all; see `group_memory`."""
    return min((limit for limit, _ in _groups(root)), default=None)


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the limit of each group around this process that has one, and the bytes that it has taken."""
    if not has_linux():
        return
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, _, described = line.partition(":")
        controllers, _, group = described.partition(":")
        if not controllers:
            mounted, names = root / "sys/fs/cgroup", ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):  # of the first version
            mounted = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = mounted / group.strip("/")
        # A container may see its own group as the outermost, under the path that it has outside.
        for folder in (own, *own.parents):
            limit, used = (text_of(folder / name).strip() for name in names)
            if limit.isdigit() and used.isdigit():
                # Pages of files that nobody has read lately count as used, but give way.
                files = re.search(r"^(?:total_)?inactive_file (\d+)$", text_of(folder / "memory.stat"), re.M)
                yield int(limit), int(used) - (int(files[1]) if files else 0)
            if folder == mounted:
                break


def available_address_space() -> int:
    """Return how many bytes this process may still map, whether or not they are backed by memory."""
    limit_bytes = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit_bytes == resource.RLIM_INFINITY:
        return _ADDRESS_SPACE
    import psutil

    return max(0, limit_bytes - int(psutil.Process().memory_info().vms))


def resident_bytes() -> int:
    """Return the memory that this process has in use."""
    if has_linux():
        return _pages(1)
    import psutil  # not at the top: confined processes have to start fast

    return int(psutil.Process().memory_info().rss)


def limited_bytes() -> int:
    """Return the memory of this process that `memory_limit` counts."""
    return _pages(0) if has_linux() else resident_bytes()


def private_bytes() -> int:
    """Return the memory of this process that `limit_private_bytes` counts."""
    return _pages(5) if has_linux() else resident_bytes()


def _pages(field: int) -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[field]) * mmap.PAGESIZE


@contextlib.contextmanager
def memory_limit(most: int) -> Iterator[None]:
    """Limit `limited_bytes` to `most` in the block.

    On Linux an allocation beyond it fails with MemoryError. Elsewhere `MEMORY_SIGNAL` ends the process soon
    after it, even within a call into a library.
    """
    if has_linux():
        before = resource.getrlimit(resource.RLIMIT_AS)
        within = [each for each in before if each != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_AS, (min([most, *within]), before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        return
    global _guard
    if _guard is None or not _guard.allow(most):
        _guard = _Guard()
        _guard.allow(most)
    try:
        yield
    finally:
        _guard.allow(0)


def limit_private_bytes(most: int) -> None:
    """Limit `private_bytes` to `most` until the next call; exceeding it raises MemoryError."""
    global _watch
    if has_linux():
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        return
    if _watch is not None:
        _watch.end()
    _watch = _Watch(most)


class _Guard:
    """A process that ends the one that started it when that exceeds a limit.

    A thread could not: it would wait for the interpreter's lock, which a call into a library may hold.
    """

    def __init__(self) -> None:
        import psutil

        guarded = psutil.Process()
        self._guarded = guarded.pid
        self._connection, theirs = socket.socketpair()
        child = os.fork()
        if not child:
            try:
                if not os.fork():  # a grandchild, for which nobody here has to wait
                    _guard_process(guarded, theirs)
            finally:
                os._exit(0)
        theirs.close()
        with contextlib.suppress(ChildProcessError):  # someone waits for all children
            os.waitpid(child, 0)

    def allow(self, most: int) -> bool:
        """Allow `most` bytes from now on, or any number (0); return whether the guard is there.

        After this no signal is sent because of the limit before.
        """
        if self._guarded != os.getpid():  # this process is a fork
            return False
        with contextlib.suppress(OSError):
            self._connection.sendall(_LIMIT.pack(most))
            return bool(self._connection.recv(1))
        return False


def _guard_process(guarded: psutil.Process, connection: socket.socket) -> None:
    """End process `guarded` once it exceeds the last limit received, until its end of `connection` closes."""
    # Others must see the end of the guarded process by its connections.
    os.closerange(0, connection.fileno())
    os.closerange(connection.fileno() + 1, _DESCRIPTORS)
    most = 0
    while True:
        told, _, _ = select.select([connection], [], [], _LOOK_S if most else None)
        if most and guarded.memory_info().rss > most:
            guarded.send_signal(MEMORY_SIGNAL)
            return
        if told:
            received = connection.recv(_LIMIT.size, socket.MSG_WAITALL)
            if len(received) < _LIMIT.size:
                return
            (most,) = _LIMIT.unpack(received)
            connection.sendall(b".")


class _Watch:
    """A thread that raises MemoryError in the one that started it while the process exceeds a limit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._watched = threading.get_ident()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait_s = _LOOK_S
        while not self._ended.wait(wait_s):
            wait_s = _LOOK_S
            if resident_bytes() > self._most:
                with self._lock:  # nothing is raised after `end`
                    if not self._ended.is_set():
                        _raise_in(self._watched, MemoryError)
                wait_s = _HANDLING_S

    def end(self) -> None:
        """Stop watching. Raises MemoryError if it is due."""
        with self._lock:
            self._ended.set()
        self._thread.join()


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Raise an error in another thread before its next step."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))


_guard: _Guard | None = None
_watch: _Watch | None = None
