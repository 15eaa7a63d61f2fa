"""One hostile case in a process of its own, under bounds.

A target is a module in `tests/fuzz/targets` with a function

    def fuzz(dice: random.Random, folder: Path) -> None

that makes one case of what `dice` says (nothing else may decide: the seed is the case), writes the hostile
files into `folder`, which is empty and kept if the case fails, and uses them. Returning and a `PunaError` are
fine, if the error is short; other exceptions, a crash, and more time or memory than the target's `BOUNDS`
are not.
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
#: Whether this is a build that watches memory. It takes terabytes of address space, keeps what was freed, and
#: is many times slower.
SANITIZED = "libasan" in os.environ.get("LD_PRELOAD", "")
#: Address space of a process beyond what it has when it starts: a blow-up must not take the machine along.
ADDRESS_SPACE = 16 << 30


@dataclass(frozen=True)
class Bounds:
    """What one case may take, and the exceptions that are answers to it."""

    seconds: float = 2.0  # of processor time, of all threads
    memory: int = 64 << 20  # bytes the process may grow by
    refusals: tuple[type[Exception], ...] = (PunaError,)
    message: int = 2100  # characters of a refusal
    #: How long a case may sleep; only what never ends takes that long.
    patience: float = 60.0


def names() -> list[str]:
    """All targets."""
    return sorted(path.stem for path in TARGETS.glob("*.py"))


def bounds(target: ModuleType) -> Bounds:
    return getattr(target, "BOUNDS", Bounds())


def serve(module: str, folder: Path, connection: Connection) -> None:
    """Run the case of each seed that arrives; answer with what was wrong, or None.

    A case that takes too long ends the process by a signal; where it was is in `folder / "log"`.
    """
    os.setsid()  # with what a target starts, this process can be killed as a group
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
            connection.send(_wrong_with(target.fuzz, seed, folder / "files", bounds(target), log))


def _wrong_with(
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
    # An interval timer, because processes that a target starts do not inherit it, unlike a limit.
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
    """The most memory this process has had since now, in bytes."""

    def __init__(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what it is now
        self._before = self._peak()

    def grown(self) -> int:
        return self._peak() - self._before

    def _peak(self) -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("VmHWM:")[2].split(maxsplit=1)[0])


def main() -> None:
    """Run one case here, without bounds, as a debugger needs it: `python -m tests.fuzz.case TARGET SEED`."""
    name, seed, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    importlib.import_module(f"tests.fuzz.targets.{name}").fuzz(random.Random(seed), folder)


if __name__ == "__main__":
    main()
