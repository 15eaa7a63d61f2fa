"""Ports for servers of which a test must know it before they start."""

from __future__ import annotations

import socket
from secrets import randbelow

#: Below those that the system gives to whoever connects: one of these might be taken a moment later.
_FIRST, _COUNT = 10_000, 20_000

#: Sockets with the names of ports that this process has given away; they go when it ends.
_given: list[socket.socket] = []


def free_port() -> int:
    """Return a port of this machine at which nobody listens, and that no other test is given meanwhile."""
    while True:
        port = _FIRST + randbelow(_COUNT)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0puna-tests-port-{port}")  # fails where another process has it
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _given.append(claim)
        return port
