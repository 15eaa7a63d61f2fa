"""One hostile case in a process of its own, within bounds.

A target is a module in `tests/fuzz/targets` with a function

    def fuzz(dice: random.Random, folder: Path) -> None

that makes one case from `dice` alone (the seed determines the case), writes the hostile files into `folder`,
which is empty at first and kept if the case fails, and uses them. Returning or raising a short `PunaError` is
fine; other exceptions, a crash, or taking more time or memory than the target's `BOUNDS` is a failure.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import random
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from puna.errors import PunaError

TARGETS = Path(__file__).parent / "targets"
#: Whether this is a build that checks memory accesses. It takes terabytes of address space, keeps freed
#: memory, and is many times slower.
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
#: Address space of a process beyond what it starts with: runaway memory use must not take down the machine.
ADDRESS_SPACE = 16 << 30


@dataclass(frozen=True)
class Bounds:
    """Limits on one case's time and memory, and the exceptions that count as refusals."""

    seconds: float = 2.0  # processor time of all threads
    memory: int = 64 << 20  # bytes the process may grow by
    refusals: tuple[type[Exception], ...] = (PunaError,)
    message: int = 2100  # characters in a refusal
    #: Seconds of wall-clock time a case may take; only one that never ends takes that long.
    patience: float = 60.0


def names() -> list[str]:
    """Return the names of all targets."""
    return sorted(path.stem for path in TARGETS.glob("*.py"))


def bounds(target: ModuleType) -> Bounds:
    return getattr(target, "BOUNDS", Bounds())


def serve(module: str, folder: Path, connection: Connection) -> None:
    """Run the case of each seed received, and reply with what was wrong, or None.

    A case that takes too long ends the process with a signal; its stack is in `folder / "log"`.
    """
    os.setsid()  # this process and those its target starts can be killed as a group
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable(log)
    faulthandler.register(signal.SIGPROF, log, chain=True)
    target = importlib.import_module(module)
    _limit_address_space()
    connection.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            seed = connection.recv()
            connection.send(_problem_with(target.fuzz, seed, folder / "files", bounds(target), log))


def _problem_with(
    fuzz: Callable[[random.Random, Path], None], seed: int, folder: Path, limits: Bounds, log: int
) -> str | None:
    memory = _PeakMemory()
    try:
        with _limited_time(limits, log):
            fuzz(random.Random(seed), folder)
    except limits.refusals as error:
        if len(str(error)) > limits.message:
            return f"the error has {len(str(error)):,} characters: {str(error)[:500]}"
    except BaseException:
        return traceback.format_exc()
    if (grown := memory.grown()) > limits.memory and not SANITIZED:
        return f"the process grew by {grown >> 20} MB, more than {limits.memory >> 20} MB"
    return None


@contextlib.contextmanager
def _limited_time(limits: Bounds, log: int) -> Iterator[None]:
    # An interval timer, because child processes do not inherit it, unlike a resource limit.
    signal.setitimer(signal.ITIMER_PROF, limits.seconds * (10 if SANITIZED else 1))
    faulthandler.dump_traceback_later(limits.patience, exit=True, file=log)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()


def _limit_address_space() -> None:
    if SANITIZED:
        return
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


class _PeakMemory:
    """The peak growth of this process's memory since creation, in bytes."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak to the current value
        self._before = self._peak()

    def grown(self) -> int:
        return self._peak() - self._before

    def _peak(self) -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split(maxsplit=1)[0])


def main() -> None:
    """Run one case here, without bounds, for a debugger: `python -m tests.fuzz.case TARGET SEED FOLDER`."""
    name, seed, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    importlib.import_module(f"tests.fuzz.targets.{name}").fuzz(random.Random(seed), folder)


if __name__ == "__main__":
    main()
