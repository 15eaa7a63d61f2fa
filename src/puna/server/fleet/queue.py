"""Requests that wait: for a model to be loaded, or for their turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from puna.errors import ServerBusyError
from puna.server.fleet.resident import ResidentModel


class Loading:
    """A load that requests wait for; it is given up when the last of them leaves.

    The task answers the model with one user more: the load's own hold on it, so that a model
    with a keep-alive of 0 does not end before the requests that wait for it have taken it.
    """

    def __init__(self, name: str, task: asyncio.Task[ResidentModel]) -> None:
        self.name = name  # of the model, for those who look
        self.task = task
        self.waiters = 0


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
