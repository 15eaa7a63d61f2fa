"""Ports for servers whose port a test must know before they start."""

from __future__ import annotations

import socket
from secrets import randbelow

#: Below the ephemeral range: the system could assign a port from there to any client a moment later.
_FIRST, _COUNT = 10_000, 20_000

#: Abstract sockets named after the ports this process has handed out; they vanish when it ends.
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a port that nothing listens on and that no other test is given in the meantime."""
    while True:
        port = _FIRST + randbelow(_COUNT)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0puna-tests-port-{port}")  # fails if another process has claimed it
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
