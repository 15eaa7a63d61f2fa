"""Redirects connections to the default port to the server of the tests (see test_examples.py)."""

import os
import socket
from typing import Any

DEFAULT = ("127.0.0.1", 11434)


class _Socket(socket.socket):
    def connect(self, address: Any, /) -> None:
        if tuple(address[:2]) == DEFAULT:
            address = (DEFAULT[0], int(os.environ["EXAMPLE_PORT"]))
        super().connect(address)


socket.socket = _Socket  # type: ignore[misc]
