"""Files of strangers, each read by a process of its own that dies of a file beyond its limits.

The owner sends one file, and gets what was read in pieces. `FileReader` is its side, `serve` the other one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from puna import confined
from puna.confined import (
    OUT_OF_MEMORY,
    OUT_OF_TIME,
    START_PATIENCE_S,
    bounds,
    encoded,
    end_out_of_memory,
    frame,
    settle,
)
from puna.errors import PunaError, ReaderError, RequestError
from puna.system.memory import limited_bytes

_CONNECTION: Final = 0  # the file descriptor of the process
#: Exit status of a process whose file took too much memory.
#: How many times the processor's time reading may take by the clock, on a busy machine.
_PATIENCE: Final = 4
#: Longer replies cannot come from our own code.
_MAX_FRAME_BYTES: Final = 64 << 20


class _Message(msgspec.Struct, tag=True, frozen=True):
    pass


class Task(_Message, frozen=True):
    """Limits of the reading, and `options` in msgpack. The next frame is the file itself."""

    seconds: float  # of processor time
    memory_bytes: int  # beyond what the process has with the file
    options: bytes


class ReaderReady(_Message, frozen=True):
    """First message of the process, once it has started."""


class Piece(_Message, frozen=True):
    """More of what was read."""

    data: bytes


class ReaderEnd(_Message, frozen=True):
    """All is read."""


class ReaderFailure(_Message, frozen=True):
    """The file cannot be read; `kind` is a class of `puna.errors`."""

    kind: str
    message: str


_FromReader = ReaderReady | Piece | ReaderEnd | ReaderFailure
_decoder: msgspec.msgpack.Decoder[_FromReader] = msgspec.msgpack.Decoder(_FromReader)
_tasks: msgspec.msgpack.Decoder[Task] = msgspec.msgpack.Decoder(Task)
_encoder = msgspec.msgpack.Encoder()


# --- the owner's side ---------------------------------------------------------------


@dataclass(frozen=True)
class FileKind:
    """A kind of files: the program `main` that reads them, with `modules`, and the words of its errors.

    `refusal` is the error of a file beyond a limit. Its message begins with what the file does, so that the
    caller can name it, and ends with the `advice`.
    """

    name: str  # in the plural
    main: Path
    modules: tuple[str, ...]
    refusal: type[RequestError]
    advice: str


class FileReader:
    """A reading of one file, in a process that lasts as long as `pieces`."""

    def __init__(
        self, kind: FileKind, data: bytes, *, seconds: float, memory_bytes: int, options: object = None
    ) -> None:
        self._kind = kind
        self._data = data
        self._task = Task(seconds, memory_bytes, _encoder.encode(options))
        self._process: _Process | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """End the reading, from any thread; whoever waits for a piece gets a ReaderError."""
        self._is_stopped = True
        if self._process is not None:
            self._process.kill()

    def pieces(self) -> Iterator[bytes]:
        """Yield what is read; this blocks.

        Raises the kind's refusal, the errors of the process, and ReaderError.
        """
        self._process = process = _Process(self._kind, self._task)
        try:
            if self._is_stopped:  # before there was a process
                process.kill()
            process.give(self._data)
            while True:
                match process.next():
                    case Piece(data=data):
                        yield data
                    case ReaderEnd():
                        return
                    case ReaderFailure(kind=kind, message=message):
                        raise PunaError.of_kind(kind, message)
                    case other:
                        raise ReaderError(f"{process.name} sent {type(other).__name__} out of turn")
        finally:
            process.end()


class _Process:
    """A process that reads, and the connection to it."""

    def __init__(self, kind: FileKind, task: Task) -> None:
        """Raises ReaderError."""
        self.name = f"the process that reads {kind.name}"
        self._kind = kind
        self._task = task
        self._is_ready = False
        try:
            self._process, self._connection = confined.start(kind.main, ("msgspec", *kind.modules))
        except OSError as error:
            raise ReaderError(f"{self.name} cannot be started with {sys.executable!r}: {error}") from error

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._connection.close()

    def give(self, data: bytes) -> None:
        """Send the file. If the process ends meanwhile, `next` says why."""
        self._connection.settimeout(START_PATIENCE_S)
        self._is_ready = isinstance(self.next(), ReaderReady)
        self._connection.settimeout(_PATIENCE * self._task.seconds)
        with contextlib.suppress(OSError):
            self._connection.sendall(encoded(self._task) + confined.LENGTH.pack(len(data)))
            self._connection.sendall(data)

    def next(self) -> _FromReader:
        """Return the next message. Raises the error that the end of the process means for the file."""
        try:
            received = frame(self._connection.recv, _MAX_FRAME_BYTES)
            if received is not None:
                return _decoder.decode(received)
        except TimeoutError:
            raise ReaderError(f"{self.name} took too long: the machine is too busy; try again") from None
        except (ValueError, msgspec.DecodeError) as error:
            raise ReaderError(f"{self.name} broke its protocol: {error}") from error
        except OSError:
            pass
        raise self._death()

    def _death(self) -> PunaError:
        try:
            status = self._process.wait(START_PATIENCE_S)
        except subprocess.TimeoutExpired:
            return ReaderError(f"{self.name} closed its connection")
        if self._is_ready and status in OUT_OF_MEMORY:
            return self._beyond(f"{self._task.memory_bytes >> 20} MB of memory")
        if status in OUT_OF_TIME:
            return self._beyond(f"{self._task.seconds:g} s of processor time")
        if self._is_ready and status < 0 and -status not in (signal.SIGKILL, signal.SIGTERM):
            return self._kind.refusal(f"crashes the process that reads it (signal {-status}): is it damaged?")
        return ReaderError(f"{self.name} has ended (status {status}); the log says more")

    def _beyond(self, limit: str) -> RequestError:
        return self._kind.refusal(f"takes more than {limit} to read: {self._kind.advice}")


# --- the process's side -------------------------------------------------------------


def serve(read: Callable[[bytes, bytes], Iterator[bytes]]) -> None:
    """Read the file that the owner sends, in this process, which then ends.

    `read` gets the file and the options in msgpack, and yields pieces. A PunaError is an error of the file,
    any other one a defect of ours.
    """
    settle()
    with contextlib.suppress(ConnectionError):  # the owner is gone
        _send(ReaderReady())
        task, data = frame(_read), frame(_read)
        if task is not None and data is not None:
            _send(_answer(read, _tasks.decode(task), data))
    os._exit(0)


def _answer(
    read: Callable[[bytes, bytes], Iterator[bytes]], task: Task, data: bytes
) -> ReaderEnd | ReaderFailure:
    try:
        with bounds(task.seconds, limited_bytes() + task.memory_bytes):
            for piece in read(data, task.options):
                _send(Piece(piece))
    except ConnectionError:
        raise
    except PunaError as error:
        return ReaderFailure(error.kind, str(error))
    except (MemoryError, SystemError):  # the latter of C code that had no memory for its exception
        end_out_of_memory()
    except Exception as error:
        traceback.print_exc()
        reason = f"internal error in the process that reads the file: {type(error).__name__}: {error}"
        return ReaderFailure(ReaderError.__name__, reason)
    return ReaderEnd()


def _read(size: int) -> bytes:
    return os.read(_CONNECTION, size)


def _send(message: _FromReader) -> None:
    rest = memoryview(encoded(message))
    while rest:
        rest = rest[os.write(_CONNECTION, rest) :]
