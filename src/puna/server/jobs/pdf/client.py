"""The server's side of a reader: starting it for a document, and taking its text."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import msgspec

from puna import confined
from puna.confined import OUT_OF_TIME, START_PATIENCE_S, frame
from puna.errors import DocumentError, PunaError, ReaderError, UnavailableError
from puna.server.jobs.pdf.protocol import (
    MAX_BYTES,
    MAX_FRAME_BYTES,
    MEMORY_BYTES,
    OUT_OF_MEMORY,
    SECONDS,
    DocumentText,
    FromReader,
    ReaderFailure,
    ReaderReady,
)

#: How long, by the clock, reading may take on a busy machine.
_PATIENCE_S: Final = 4 * SECONDS

_decoder: msgspec.msgpack.Decoder[FromReader] = msgspec.msgpack.Decoder(FromReader)


def read_pdf(data: bytes) -> str:
    """Return the text of a PDF. Blocks.

    Raises DocumentError, also beyond a limit, UnavailableError without `pypdf`, and ReaderError. Messages of
    the first begin with what the document does or has, so that the caller can name it.
    """
    if find_spec("pypdf") is None:
        raise UnavailableError(
            "reading a PDF needs the package pypdf; install it with: pip install 'puna[pdf]'"
        )
    if len(data) > MAX_BYTES:
        raise DocumentError(f"is larger than {MAX_BYTES >> 20} MB: send it in parts")
    try:
        process, connection = confined.start(Path(__file__).with_name("__main__.py"), ("msgspec", "pypdf"))
    except OSError as error:
        raise ReaderError(
            f"the process that reads PDFs cannot be started with {sys.executable!r}: {error}"
        ) from error
    with connection:
        try:
            return _read(process, connection, data)
        finally:
            process.kill()
            process.wait()


def _read(process: subprocess.Popen[bytes], connection: socket.socket, data: bytes) -> str:
    is_ready = False
    try:
        connection.settimeout(START_PATIENCE_S)
        is_ready = isinstance(_next(connection), ReaderReady)
        connection.settimeout(_PATIENCE_S)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end says why
            connection.sendall(confined.packed(data))
        match _next(connection):
            case DocumentText(text=text):
                return text
            case ReaderFailure(kind=kind, message=message):
                raise PunaError.of_kind(kind, message)
            case other:
                raise ReaderError(f"the process that reads PDFs sent {other!r:.40} out of turn")
    except TimeoutError:
        raise ReaderError("reading the PDF took too long: the machine is too busy; try again") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise ReaderError(f"the process that reads PDFs broke its protocol: {error}") from error
    except OSError as error:
        raise ReaderError(f"the process that reads PDFs cannot be reached: {error}") from error
    except EOFError:
        raise _death(process, is_ready=is_ready) from None


def _next(connection: socket.socket) -> FromReader:
    received = frame(connection.recv, MAX_FRAME_BYTES)
    if received is None:
        raise EOFError
    return _decoder.decode(received)


def _death(process: subprocess.Popen[bytes], *, is_ready: bool) -> PunaError:
    try:
        status = process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        return ReaderError("the process that reads PDFs closed its connection")
    if is_ready and status == OUT_OF_MEMORY:
        return DocumentError(f"takes more than {MEMORY_BYTES >> 20} MB of memory to read: send it in parts")
    if -status in OUT_OF_TIME:
        return DocumentError(f"takes more than {SECONDS:g} s of processor time to read: send it in parts")
    if is_ready and status < 0 and -status not in (signal.SIGKILL, signal.SIGTERM):
        return DocumentError(f"crashes the process that reads it (signal {-status}): is it damaged?")
    return ReaderError(f"the process that reads PDFs has ended (status {status}); the log says more")
