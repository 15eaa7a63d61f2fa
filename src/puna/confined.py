"""Small processes that run what strangers wrote, and die of what takes too much.

The owner starts one and talks to it over a socket: a little-endian u32 length, then that many bytes. What it
does for a request it does within `bounds`, which no C function escapes: the process ends.
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
from typing import Final

import msgspec

#: How long a process may take to start, on a machine that is busy with other things.
START_PATIENCE_S: Final = 60.0
#: Signals the system ends a process with for want of processor time.
OUT_OF_TIME: Final = (signal.SIGPROF, signal.SIGXCPU)

#: All that such a process gets of the environment: what the date and its own start depend on.
_ENVIRONMENT: Final = ("TZ", "LANG", "LC_ALL", "LC_TIME", "LD_LIBRARY_PATH")
#: The kernels' threads come first: a stranger's program may take half a core from none of them.
_NICENESS: Final = 5
#: When memory runs out, the system ends these processes before the server and its models (-1000 to 1000).
_EXPENDABLE: Final = "800"

LENGTH: Final = struct.Struct("<I")

_encoder = msgspec.msgpack.Encoder()


# --- the owner's side ------------------------------------------------------------------------------------


def start(main: Path, modules: Iterable[str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process that runs `main`, which can import `modules` and Puna; and the connection to it.

    Its end of the connection is its standard input. Raises `OSError`.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(main), *_folders(modules)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                process_group=0,  # Ctrl-C in a terminal is not for it
            )
    except OSError:
        ours.close()
        raise
    return process, ours


def _folders(modules: Iterable[str]) -> list[str]:
    """Where the modules lie, as they were found here."""
    found = [find_spec(name) for name in modules]
    files = [__file__, *(spec.origin for spec in found if spec is not None and spec.origin is not None)]
    return list(dict.fromkeys(str(Path(file).parent.parent) for file in files))


# --- messages --------------------------------------------------------------------------------------------


def packed(body: bytes) -> bytes:
    """`body` as a frame."""
    return LENGTH.pack(len(body)) + body


def encoded(message: msgspec.Struct) -> bytes:
    """Return `message` as a frame of msgpack."""
    return packed(_encoder.encode(message))


def frame(read: Callable[[int], bytes], most: int | None = None) -> bytes | None:
    """The next frame's bytes, where `read` gives 1 to n bytes, or none at the end; None at the end.

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
    """`size` bytes; None if they end before."""
    pieces: list[bytes] = []
    while size:
        piece = read(min(size, 1 << 20))
        if not piece:
            return None
        size -= len(piece)
        pieces.append(piece)
    return b"".join(pieces)


# --- inside ----------------------------------------------------------------------------------------------


def settle() -> None:
    """Make this process one that leaves no dump, and that Ctrl-C and busy threads of others come before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_EXPENDABLE)


@contextlib.contextmanager
def bounds(seconds: float, address_space: int) -> Iterator[Callable[[], float]]:
    """End the process if the block takes more processor time; let it have that much address space.

    Yields a function that says, when the block is over, how many of the `seconds` are left.
    """
    left = seconds
    before = resource.getrlimit(resource.RLIMIT_AS)
    within = [most for most in before if most != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([address_space, *within]), before[1]))
    # Nobody handles the signal: it ends the process whatever C function is running.
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield lambda: left
    finally:
        left, _ = signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)


def memory_bytes(kind: str) -> int:
    """What this process has of memory: "size" in addresses, or "resident"."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[("size", "resident").index(kind)]) * resource.getpagesize()


def private_bytes() -> int:
    """Memory that this process has asked for, files that it has mapped excepted."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()


def limit_private_bytes(most: int) -> None:
    """Let the process have `most` bytes of memory, files that it maps excepted: more is a MemoryError."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
