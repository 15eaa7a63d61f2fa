"""A target that fails in every possible way, for the driver's own tests."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from pathlib import Path

from puna.errors import RequestError
from tests.fuzz.case import Bounds

BOUNDS = Bounds(seconds=0.5, memory=32 << 20, patience=2)


def refuse() -> None:
    raise RequestError("no")


def ramble() -> None:
    error = RequestError("no")
    error.args = ("no" * 2000,)  # bypasses the shortening of messages
    raise error


def succeed() -> None:
    pass


def wrong() -> None:
    raise ZeroDivisionError("a mistake")


def loop() -> None:
    while True:
        pass


def sleep() -> None:
    threading.Event().wait()


def grow() -> None:
    bytearray(64 << 20)


def explode() -> None:
    with contextlib.suppress(MemoryError):
        bytearray(1 << 40)
    raise MemoryError("as it should")


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def leave() -> None:
    sys.exit(3)


def die() -> None:
    os._exit(3)


FAULTS = (refuse, ramble, succeed, wrong, loop, sleep, grow, explode, crash, leave, die)


def fuzz(dice: random.Random, folder: Path) -> None:
    fault = dice.choice(FAULTS)
    (folder / "hostile").write_text(fault.__name__)
    fault()
