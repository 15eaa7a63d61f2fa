"""The importer process: reads one file of chats, and dies of one that exceeds its limits."""

from __future__ import annotations

import contextlib
import os
import traceback
from typing import Final

from puna.confined import bounds, end_out_of_memory, frame, settle
from puna.errors import ImporterError, PunaError
from puna.server.history.exchange.importer.protocol import (
    MEMORY_BYTES,
    SECONDS,
    FoundChat,
    FromImporter,
    ImportEnd,
    ImporterFailure,
    ImporterReady,
    packed,
)
from puna.server.history.exchange.reading import read_chats
from puna.server.history.exchange.trees import ReadChat, digest
from puna.system.memory import limited_bytes

_CONNECTION: Final = 0  # the file descriptor


def main() -> None:
    """Read the file that the owner sends."""
    settle()
    with contextlib.suppress(ConnectionError):  # the owner is gone
        _send(ImporterReady())
        try:
            with bounds(SECONDS, limited_bytes() + MEMORY_BYTES):
                data = frame(lambda size: os.read(_CONNECTION, size))
                if data is not None:
                    _send(_answer(data))
        except MemoryError:
            end_out_of_memory()
    os._exit(0)  # objects by the million take long to destroy


def _answer(data: bytes) -> FromImporter:
    """Send the chats of a file, and return how it ended."""
    try:
        for found in read_chats(data):
            _send(FoundChat(found, digest(found)) if isinstance(found, ReadChat) else found)
    except PunaError as error:
        return ImporterFailure(error.kind, str(error))
    except (ConnectionError, MemoryError):
        raise
    except Exception as error:
        traceback.print_exc()  # our own defect
        reason = f"internal error in the process that reads imports: {type(error).__name__}"
        return ImporterFailure(ImporterError.__name__, reason)
    return ImportEnd()


def _send(message: FromImporter) -> None:
    rest = memoryview(packed(message))
    while rest:
        rest = rest[os.write(_CONNECTION, rest) :]
