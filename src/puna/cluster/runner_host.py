"""The actor that owns a runner process. One is started for each, so it imports little."""

from __future__ import annotations

import secrets
import socket

from puna.runner.peers import SECRET_BYTES, listen
from puna.runner.spawned import SpawnedProcess


class RunnerHost:
    """The actor that owns a runner process, which the head connects with."""

    def __init__(self) -> None:
        self._process: SpawnedProcess | None = None
        self._lifeline: socket.socket | None = None  # the process ends with it

    async def start(self, address: str) -> tuple[int, bytes]:
        """Start the process, and return the port at `address` and the secret to connect with."""
        secret = secrets.token_bytes(SECRET_BYTES)
        listener = listen(address)
        port: int = listener.getsockname()[1]
        self._lifeline, owner = socket.socketpair()
        self._lifeline.sendall(secret)
        self._process = await SpawnedProcess.listening(listener, owner)
        return port, secret

    async def kill(self) -> None:
        """Kill the process."""
        assert self._process is not None
        self._process.end()

    async def ended(self, patience_s: float) -> tuple[int | None, list[str]] | None:
        """Wait for the process to end, killing it after `patience_s`; return its status and last lines.

        Returns None if it ended because the connection with the head broke.
        """
        assert self._process is not None
        await self._process.ended(patience_s)
        await self._process.last_words()
        if self._lifeline is not None:
            self._lifeline.close()
        status = self._process.returncode
        return None if status == 0 else (status, self._process.last_lines)
