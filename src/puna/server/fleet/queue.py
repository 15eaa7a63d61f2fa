"""Requests that wait: for a model to be loaded, or for their turn."""

from __future__ import annotations

from collections import Counter
from typing import Final

from puna.errors import ServerBusyError


class Queue:
    """How many requests may wait.

    A client with no other request in progress has a second queue of that length: others cannot fill it.
    """

    def __init__(self, longest: int) -> None:
        self._longest: Final = longest
        self._in_progress: Counter[str] = Counter()  # requests of each client

    def enter(self, client: str) -> None:
        self._in_progress[client] += 1

    def leave(self, client: str) -> None:
        self._in_progress[client] -= 1
        if not self._in_progress[client]:
            del self._in_progress[client]

    def check(self, client: str, waiting: int) -> None:
        """Raise ServerBusyError if a request of `client`, which has entered, cannot wait with `waiting`."""
        most = self._longest * (2 if self._in_progress[client] == 1 else 1)
        if waiting > most:
            raise ServerBusyError("server busy, please try again.  maximum pending requests exceeded")
