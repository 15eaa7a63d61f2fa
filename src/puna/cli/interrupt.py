"""Ctrl-C while the server works: the request ends, at a place where nothing is left half done."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from puna.cli.client import Client


@contextmanager
def ctrl_c_ends_requests(client: Client) -> Iterator[None]:
    """In here Ctrl-C makes the running request of `client` raise KeyboardInterrupt, and does nothing else.

    Python's own way, an exception wherever the program happens to be, may strike inside a library that has
    just taken a lock or is closing a connection, and leave it so. Needs the main thread.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background
        yield
        return

    def on_sigint(_signal: int, _frame: FrameType | None) -> None:
        client.interrupt()

    before = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
