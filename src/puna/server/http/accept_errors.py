"""What the log says when connections cannot be accepted, for example for lack of descriptors."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

#: asyncio's words for it. It tries again every second, some two thousand times.
_MESSAGE = "socket.accept() out of system resource"
_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


class AcceptErrors:
    """The exception handler of an event loop: one line a second, with a count, for failures to accept."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if context.get("message") != _MESSAGE:
            loop.default_exception_handler(context)
            return
        if not self._count:
            loop.call_later(_INTERVAL_S, self._say, context.get("exception"))
        self._count += 1

    def _say(self, error: object) -> None:
        _log.error(
            "cannot accept connections: %s (%d failures within %g s); allow more open files (ulimit -n), or "
            "set PUNA_MAX_CONNECTIONS to fewer",
            error,
            self._count,
            _INTERVAL_S,
        )
        self._count = 0
