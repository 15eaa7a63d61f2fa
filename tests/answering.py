"""Serve HTTP in a thread of the test, which stops without delay."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import HTTPServer
from typing import TypeVar

_Server = TypeVar("_Server", bound=HTTPServer)


@contextmanager
def answering(server: _Server) -> Iterator[_Server]:
    """Let `server` answer requests within the block, and close it at the end."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    with server:
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
