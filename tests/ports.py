"""Ports for servers of which a test must know it before they start."""

from __future__ import annotations

import socket
from secrets import randbelow

#: Below those that the system gives to whoever connects: one of these might be taken a moment later.
_FIRST, _COUNT = 10_000, 20_000


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    while True:
        port = _FIRST + randbelow(_COUNT)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
