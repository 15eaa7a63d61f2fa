"""Small processes that run untrusted programs, and die if these take too much.

The owner starts a process and talks to it over a socket: a little-endian u32 length, then that many bytes.
The work for a request runs within `bounds`, which end the process even inside a C function.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from puna.system.memory import MEMORY_SIGNAL, memory_limit
from puna.system.processes import be_expendable

#: Maximum time for a process to start on a busy machine.
START_PATIENCE_S: Final = 60.0
_OUT_OF_MEMORY: Final = 12  # the exit status
#: How a process ends that has exceeded its `bounds`: exit statuses, or the negative numbers of signals.
OUT_OF_TIME: Final = (-signal.SIGPROF, -signal.SIGXCPU)
OUT_OF_MEMORY: Final = (_OUT_OF_MEMORY, -MEMORY_SIGNAL)

#: The variables passed to such a process, on which dates and its own start depend.
_ENVIRONMENT: Final = ("TZ", "LANG", "LC_ALL", "LC_TIME", "LD_LIBRARY_PATH", "PUNA_PORTABLE")
#: Such processes compute no matrix products: threads for them would double the time of importing numpy.
_OWN: Final = {"OPENBLAS_NUM_THREADS": "1"}
#: Kernel threads have priority: untrusted programs must not take processor time from them.
_NICENESS: Final = 5

LENGTH: Final = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()


def start(main: Path, modules: Iterable[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that runs `main`, which can import `modules` and Puna; return it and its connection.

    The process's end of the connection is its standard input. Raises `OSError`.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(main), *_folders(modules)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ} | _OWN,
                process_group=0,  # keeps Ctrl-C in a terminal away from it
            )
    except OSError:
        ours.close()
        raise
    return process, ours


def _folders(modules: Iterable[str]) -> list[str]:
    """Return the folders of the modules, as found in this process."""
    folders = [Path(__file__).parent.parent]
    for spec in map(find_spec, (*modules, "psutil")):
        if spec is not None and spec.origin is not None:
            folder = Path(spec.origin).parent
            folders.append(folder.parent if spec.submodule_search_locations else folder)
    return list(dict.fromkeys(map(str, folders)))


def packed(body: bytes) -> bytes:
    """Return `body` as a frame."""
    return LENGTH.pack(len(body)) + body


def encoded(message: msgspec.Struct) -> bytes:
    """Return `message` as a frame of msgpack."""
    return packed(_encoder.encode(message))


def frame(read: Callable[[int], bytes], most: int | None = None) -> bytes | None:
    """Return the next frame's bytes, or None at the end; `read(n)` returns 1 to n bytes, or none at the end.

    Raises ValueError for a frame of more than `most` bytes.
    """
    header = exactly(read, LENGTH.size)
    if header is None:
        return None
    (length,) = LENGTH.unpack(header)
    if most is not None and length > most:
        raise ValueError(f"a frame of {length} bytes was announced; at most {most} are allowed")
    return exactly(read, length)


def exactly(read: Callable[[int], bytes], size: int) -> bytes | None:
    """Return `size` bytes, or None if the input ends before."""
    pieces: list[bytes] = []
    while size:
        piece = read(min(size, 1 << 20))
        if not piece:
            return None
        size -= len(piece)
        pieces.append(piece)
    return b"".join(pieces)


def settle() -> None:
    """Prepare this process: no core dump, no Ctrl-C, low priority, and first to go when memory runs out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICENESS)
    be_expendable()


def end_out_of_memory() -> NoReturn:
    """End this process after a MemoryError, because its state can no longer be trusted."""
    os._exit(_OUT_OF_MEMORY)


@contextlib.contextmanager
def bounds(seconds: float, most_bytes: int) -> Iterator[Callable[[], float]]:
    """Limit the block to `seconds` of processor time, ending the process, and to `most_bytes` of
    memory (`limited_bytes`), with MemoryError or ending the process.

    Yields a function that returns, after the block, how many of the `seconds` are left.
    """
    left = seconds
    # The signal has no handler, so it ends the process in any C function.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        with memory_limit(most_bytes):
            yield lambda: left
    finally:
        left, _ = signal.setitimer(signal.ITIMER_PROF, 0)
