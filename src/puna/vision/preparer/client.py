"""Client of the preparer process of a vision tower."""

from __future__ import annotations

import pickle
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from puna import confined
from puna.confined import OUT_OF_MEMORY, OUT_OF_TIME, START_PATIENCE_S, encoded, frame
from puna.errors import ImageError, PreparerError, PunaError
from puna.vision.limits import ImageLimits
from puna.vision.preparer.protocol import (
    MAX_REPLY_BYTES,
    FromPreparer,
    Prepare,
    PreparedImage,
    PreparerFailure,
    PreparerReady,
)
from puna.vision.tower import VisionTower

#: Wall-clock limit for one image on a busy machine.
PATIENCE_S: Final = 60.0

_decoder: msgspec.msgpack.Decoder[FromPreparer] = msgspec.msgpack.Decoder(FromPreparer)


class Preparer:
    """Decodes images for a tower in a separate process, one at a time.

    The process starts with the first image, restarts after an image killed it, and ends with this object.
    Call `prepare` from one thread at a time; the other methods from any.
    """

    def __init__(self, tower: VisionTower) -> None:
        self._opening = confined.packed(pickle.dumps((type(tower), tower.options)))
        self._lock = threading.Lock()
        self._closed = False
        self._process: _Process | None = None
        self._end: Callable[[], object] = lambda: None

    def prepare(
        self, data: bytes, name: str, limits: ImageLimits, seconds: float | None = None
    ) -> PreparedImage:
        """Return the image in the file `data`, which errors call `name`, as the tower reads it.

        It may take `seconds` of processor time if that is less than the limit of one image. Raises
        `ImageError`, also beyond the limits, and `PreparerError`.
        """
        allowed = limits.seconds if seconds is None else min(limits.seconds, seconds)
        process = self._running()
        try:
            reply = process.ask(encoded(Prepare(data, name, limits, allowed)))
        except BaseException as error:
            self._drop(process)
            if isinstance(error, _TooMuchError):
                raise error.of(name, limits) from None
            raise
        match reply:
            case PreparerFailure(kind=kind, message=reason):
                raise PunaError.of_kind(kind, reason)
            case PreparedImage():
                return reply
        self._drop(process)
        raise PreparerError(f"the process that decodes images answered {type(reply).__name__} out of turn")

    def stop(self) -> None:
        """Abort the current image with a `PreparerError`; the next image gets a fresh process."""
        with self._lock:
            self._end()
            self._process = None

    def close(self) -> None:
        """End the process; the current image fails."""
        with self._lock:
            self._closed = True
            self._end()

    def _running(self) -> _Process:
        with self._lock:
            if self._closed:
                raise PreparerError("the process that decodes images is closed")
            if self._process is None:
                self._process = _Process.start(self._opening)
                self._end = weakref.finalize(self, _Process.end, self._process)
            return self._process

    def _drop(self, process: _Process) -> None:
        with self._lock:
            if self._process is process:
                self._end()
                self._process = None


class _TooMuchError(Exception):
    """The preparer process died of an image."""

    def __init__(self, status: int) -> None:
        self.status = status

    def of(self, name: str, limits: ImageLimits) -> ImageError:
        if self.status in OUT_OF_MEMORY:
            return ImageError(
                f"{name} takes more than {limits.memory_bytes >> 20} MB of memory to decode, the limit for "
                "one image; send it smaller"
            )
        if self.status in OUT_OF_TIME:
            return ImageError(
                f"{name} takes more than {limits.seconds:g} s of processor time to decode, the limit for one "
                f"image ({limits.seconds_together:g} s for those of a request); send it smaller"
            )
        return ImageError(
            f"{name} cannot be decoded: it crashed the decoder process (signal {-self.status}); "
            "is the file damaged?"
        )


class _Process:
    """A preparer process and the connection to it."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, opening: bytes) -> None:
        self._process = process
        self._connection = connection
        self._opening = opening
        self._is_ready = False

    @classmethod
    def start(cls, opening: bytes) -> _Process:
        """Start a preparer. Raises `PreparerError`."""
        try:
            process, connection = confined.start(
                Path(__file__).with_name("__main__.py"), ("numpy", "PIL", "msgspec")
            )
        except OSError as error:
            raise PreparerError(
                f"the process that decodes images cannot be started with {sys.executable!r}: {error}"
            ) from error
        return cls(process, connection, opening)

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def ask(self, message: bytes) -> FromPreparer:
        """Return the reply to `message`. If the process died, raises the error this means for the image."""
        try:
            if not self._is_ready:
                self._connection.settimeout(START_PATIENCE_S)
                self._connection.sendall(self._opening)
                self._is_ready = isinstance(self._receive(), PreparerReady)
            self._connection.settimeout(PATIENCE_S)
            self._connection.sendall(message)
            return self._receive()
        except TimeoutError:
            limit_s = PATIENCE_S if self._is_ready else START_PATIENCE_S
            raise PreparerError(
                f"the image was not decoded within {limit_s:g} s: the machine is too busy; try again"
            ) from None
        except (OSError, EOFError):
            raise self._death() from None
        except (ValueError, msgspec.DecodeError) as error:
            raise PreparerError(f"the process that decodes images broke its protocol: {error}") from error

    def _receive(self) -> FromPreparer:
        received = frame(self._connection.recv, MAX_REPLY_BYTES)
        if received is None:
            raise EOFError
        return _decoder.decode(received)

    def _death(self) -> Exception:
        """Return the error that the end of the process means for the current image."""
        try:
            status = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            return PreparerError("the process that decodes images closed its connection")
        if not self._is_ready:
            return PreparerError(
                f"the process that decodes images could not start (exit status {status}); see its output in "
                "the log or on the terminal"
            )
        if -status in (signal.SIGKILL, signal.SIGTERM) or status == 0:
            return PreparerError(
                "the process that decodes images was killed, probably because memory ran out; try again"
            )
        if status < 0 or status in OUT_OF_MEMORY:
            return _TooMuchError(status)
        return PreparerError(f"the process that decodes images has ended with exit status {status}")
