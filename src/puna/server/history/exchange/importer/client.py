"""The server's side of an importer: starting it, taking the chats it finds, and ending it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

import msgspec

from puna import confined
from puna.confined import OUT_OF_MEMORY, OUT_OF_TIME, START_PATIENCE_S, frame
from puna.errors import ImporterError, PunaError, RequestError
from puna.server.history.exchange.importer.protocol import (
    MAX_FRAME_BYTES,
    MEMORY_BYTES,
    SECONDS,
    FoundChat,
    FromImporter,
    ImportEnd,
    ImporterFailure,
    ImporterReady,
)
from puna.server.history.exchange.reading import SkippedChat

#: How long, by the clock, the next chat of a file may take on a busy machine.
PATIENCE_S: Final = 4 * SECONDS

_decoder: msgspec.msgpack.Decoder[FromImporter] = msgspec.msgpack.Decoder(FromImporter)


async def imported(data: bytes) -> AsyncGenerator[FoundChat | SkippedChat, None]:
    """Yield the chats of a file, read in a process of its own that ends with the generator.

    Raises RequestError for a file that cannot be read or exceeds a limit, and ImporterError.
    """
    process = await asyncio.to_thread(_Process)
    try:
        await asyncio.to_thread(process.give, data)
        while True:
            match await asyncio.to_thread(process.next):
                case FoundChat() | SkippedChat() as found:
                    yield found
                case ImporterFailure(kind=kind, message=message):
                    raise PunaError.of_kind(kind, message)
                case ImportEnd():
                    return
                case other:
                    raise ImporterError(f"the process that reads imports sent {type(other).__name__} late")
    finally:
        await asyncio.shield(asyncio.to_thread(process.end))  # a thread that waits for it wakes up


class _Process:
    """An importer and the connection to it."""

    def __init__(self) -> None:
        """Raises ImporterError."""
        try:
            self._process, self._connection = confined.start(
                Path(__file__).with_name("__main__.py"), ("msgspec",)
            )
        except OSError as error:
            raise ImporterError(
                f"the process that reads imports cannot be started with {sys.executable!r}: {error}"
            ) from error
        self._is_ready = False

    def give(self, data: bytes) -> None:
        """Send the file. If the process ends meanwhile, `next` says why."""
        self._connection.settimeout(START_PATIENCE_S)
        self._is_ready = isinstance(self.next(), ImporterReady)
        self._connection.settimeout(PATIENCE_S)
        with contextlib.suppress(OSError):
            self._connection.sendall(confined.LENGTH.pack(len(data)))
            self._connection.sendall(data)

    def next(self) -> FromImporter:
        """Return the next message. Raises the error that the end of the process means for the file."""
        try:
            received = frame(self._connection.recv, MAX_FRAME_BYTES)
            if received is not None:
                return _decoder.decode(received)
        except TimeoutError:
            raise ImporterError(
                "reading the import took too long: the machine is too busy; try again"
            ) from None
        except (ValueError, msgspec.DecodeError) as error:
            raise ImporterError(f"the process that reads imports broke its protocol: {error}") from error
        except OSError:
            pass
        raise self._death()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _death(self) -> PunaError:
        try:
            status = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            return ImporterError("the process that reads imports closed its connection")
        if self._is_ready and status in OUT_OF_MEMORY:
            return RequestError(_exceeded(f"{MEMORY_BYTES >> 20} MB of memory"))
        if status in OUT_OF_TIME:
            return RequestError(_exceeded(f"{SECONDS:g} s of processor time"))
        if -status in (signal.SIGKILL, signal.SIGTERM):
            return ImporterError("the process that reads imports was killed, probably because memory ran out")
        return ImporterError(f"the process that reads imports has ended (status {status}); the log says more")


def _exceeded(limit: str) -> str:
    return f"reading the file takes more than {limit}, the limit for an import; import it in parts"
