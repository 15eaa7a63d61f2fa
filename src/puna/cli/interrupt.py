"""Ctrl-C during a request, which ends cleanly, with nothing left half done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Interruptible(Protocol):
    """A client, or a chat with its tools, whose current work a signal handler can end."""

    def interrupt(self) -> None: ...


@contextmanager
def ctrl_c_ends_requests(client: Interruptible) -> Iterator[None]:
    """Make Ctrl-C only raise KeyboardInterrupt from the current request of `client`.

    Python's default handler raises wherever the program happens to be, possibly inside a library that holds
    a lock or is closing a connection. Must be used in the main thread.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # shells start background jobs like this
        yield
        return

    def on_sigint(_signal: int, _frame: FrameType | None) -> None:
        client.interrupt()

    before = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
