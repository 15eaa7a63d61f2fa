"""The engine's side of a model's grammar processes: starting them, asking them, ending them."""

from __future__ import annotations

import contextlib
import itertools
import logging
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import numpy as np

from puna import confined
from puna.confined import OUT_OF_MEMORY, OUT_OF_TIME, START_PATIENCE_S, encoded, frame
from puna.errors import FormatError, PunaError, RequestError, RunnerError
from puna.grammar.compiler.protocol import (
    COMPILE_S,
    FOLLOW_S,
    MAX_REPLY_BYTES,
    MEMORY_BYTES,
    Begin,
    Compile,
    Compiled,
    CompilerFailure,
    End,
    Ended,
    Follow,
    Followed,
    Fork,
    FromProcess,
    LookAhead,
    Masks,
    OpenVocabulary,
    ToProcess,
)
from puna.grammar.constraint import mask_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How long, by the clock, reading the vocabulary and compiling a format may take on a busy machine.
_PATIENCE_S: Final = START_PATIENCE_S + 30.0
#: How long the engine waits for the rest of a reply that has begun to arrive.
_REPLY_PATIENCE_S: Final = 5.0
#: A format whose masks take longer gets none for drafts.
_SLOW_S: Final = 0.005
#: Formats that stay compiled, each in a process, and the memory they may have together.
_MAX_KEPT: Final = 16
_MAX_KEPT_BYTES: Final = MEMORY_BYTES

_MODULES: Final = ("llguidance", "msgspec", "numpy", "regex", "tiktoken", "tokenizers")

_log = logging.getLogger("puna.grammar")
_decoder: msgspec.msgpack.Decoder[FromProcess] = msgspec.msgpack.Decoder(FromProcess)
_numbers = itertools.count()


class Compiler:
    """Compiles formats in processes of their own, within limits. Safe to share between threads.

    The root process starts with the first format and reads the vocabulary of the model at `path`; all others
    are forks. They end with this object.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._root: _Root | None = None
        self._kept: OrderedDict[bytes, _Format] = OrderedDict()
        self._closed = False

    def constraint_of(self, task: bytes, request_id: int | None = None) -> RemoteConstraint:
        """Compile a pickled `FormatTask`, the form of a request's answers, and return the constraint of one.

        Raises `RequestError` that says what is wrong with the format or which limit it exceeds, and
        `RunnerError` if no process can be had. `cancel` may end it early.
        """
        compiled = self._compiled(task, request_id)
        try:
            compiled.start()
            compiled.wait()
        except BaseException:
            self._drop(compiled)
            raise
        finally:
            with self._lock:
                compiled.asked_by.discard(request_id)
                self._forget_oldest(compiled)
        return RemoteConstraint(self, task)

    def cancel(self, request_id: int) -> None:
        """Stop compiling a format that no other request waits for."""
        with self._lock:
            for compiled in self._kept.values():
                compiled.leave(request_id)

    def close(self) -> None:
        """End all processes. Whatever they are working on fails."""
        with self._lock:
            self._closed = True
            kept, self._kept = self._kept, OrderedDict()
            for compiled in kept.values():
                compiled.process.end()
            if self._root is not None:
                self._root.end()

    def fork(self, task: bytes) -> _Process:
        """Fork a process for one answer, without waiting. A format that was forgotten is compiled again."""
        compiled = self._compiled(task)
        compiled.has_answers = True
        compiled.start()
        return compiled.process.fork()

    def _compiled(self, task: bytes, request_id: int | None = None) -> _Format:
        """Return the process of a format, which may still be compiling it."""
        with self._lock:
            if self._closed:
                raise RunnerError("the model was unloaded")
            found = self._kept.get(task)
            if found is None or found.is_over:
                if self._root is None or not self._root.lives():
                    self._root = _Root(self._path)
                found = self._kept[task] = _Format(self._root.fork(), task)
            self._kept.move_to_end(task)
            if request_id is not None:
                found.asked_by.add(request_id)
            self._forget_oldest(found)
            return found

    def _forget_oldest(self, newest: _Format) -> None:
        """Keep no more than there is room for. A process ends when no answer is a fork of it any more."""
        for task, compiled in [*self._kept.items()]:
            kept_bytes = sum(each.size_bytes for each in self._kept.values())
            if len(self._kept) <= _MAX_KEPT and kept_bytes <= _MAX_KEPT_BYTES:
                return
            if compiled is not newest and not compiled.asked_by:
                del self._kept[task]

    def _drop(self, compiled: _Format) -> None:
        with self._lock:
            if self._kept.get(compiled.task) is compiled:
                del self._kept[compiled.task]
            compiled.process.end()


class _Process:
    """A grammar process and the connection to it. The process ends when the connection does."""

    def __init__(self, connection: socket.socket, parent: _Process | None = None, number: int = 0) -> None:
        self.connection = connection
        self._parent = parent
        self._number = number
        self._sending = threading.Lock()
        self.is_over = False
        self._hang_up = weakref.finalize(self, connection.close)

    def fork(self) -> _Process:
        """Fork the process, once it has answered earlier messages."""
        ours, theirs = socket.socketpair()
        number = next(_numbers)
        with theirs, self._sending, contextlib.suppress(OSError):  # then the new one has ended, too
            socket.send_fds(self.connection, [encoded(Fork(number))], [theirs.fileno()])
        return _Process(ours, self, number)

    def send(self, message: ToProcess) -> None:
        """Send `message`. An ended process shows when its reply is received."""
        with self._sending, contextlib.suppress(OSError):
            self.connection.sendall(encoded(message))

    def receive(self, patience_s: float) -> FromProcess:
        """Return the next reply. Raises `TimeoutError`, and `RunnerError` if there will be none."""
        try:
            self.connection.settimeout(patience_s)
            received = frame(self._read, MAX_REPLY_BYTES)
            if received is not None:
                return _decoder.decode(received)
        except TimeoutError:
            raise
        except (OSError, ValueError, msgspec.DecodeError):
            pass
        finally:
            with contextlib.suppress(OSError):
                self.connection.settimeout(None)
        self.is_over = True
        raise RunnerError("the process that follows formats of answers has ended")

    def _read(self, size: int) -> bytes:
        try:
            return self.connection.recv(size)
        except ConnectionResetError:  # it ended without reading everything; its replies come after this
            return self.connection.recv(size)

    def has_said_something(self) -> bool:
        """Whether a reply, or the end, has not been received yet."""
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        return bool(poll.poll(0))

    def end(self) -> None:
        """End it at once, whatever it is doing."""
        self.is_over = True
        # First, so that a thread that waits wakes up and does not hear that it was killed, as if by a limit.
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        if self._parent is not None:
            self._parent.send(End(self._number))


class _Root(_Process):
    """The process that reads the vocabulary, and that all others are forks of."""

    def __init__(self, path: Path) -> None:
        """Raises `RunnerError`."""
        try:
            process, connection = confined.start(Path(__file__).with_name("__main__.py"), _MODULES)
        except OSError as error:
            raise RunnerError(
                f"the process that compiles formats cannot be started with {sys.executable!r}: {error}"
            ) from error
        super().__init__(connection)
        self._process = process
        self._kill = weakref.finalize(self, _ended, process)
        self.send(OpenVocabulary(str(path.absolute())))

    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self) -> None:
        self._kill()
        super().end()


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


class _Format:
    """The process of one format."""

    def __init__(self, process: _Process, task: bytes) -> None:
        self.process = process
        self.task = task
        self.asked_by: set[int | None] = set()
        self.has_answers = False  # forks, which may still be waiting for it
        self.size_bytes = 0  # once it is compiled
        self._starting = threading.Lock()
        self._waiting = threading.Lock()
        self._started = self._done = False
        self._error: PunaError | None = None

    @property
    def is_over(self) -> bool:
        """Whether the process has ended, the only thing that it reports unasked."""
        return self.process.is_over or (self._done and self.process.has_said_something())

    def start(self) -> None:
        """Begin to compile the format."""
        with self._starting:
            if not self._started:
                self._started = True
                self.process.send(Compile(self.task))

    def wait(self) -> None:
        """Wait until it is compiled. Raises the error of the format."""
        with self._waiting:
            if not self._done:
                self._error = self._outcome()
                self._done = True
            if self._error is not None:
                raise self._error

    def leave(self, request_id: int) -> None:
        """Stop waiting on behalf of a request. If nothing else needs the format, compiling ends."""
        if request_id in self.asked_by:
            self.asked_by.discard(request_id)
            if not (self.asked_by or self.has_answers or self._done):
                self.process.end()

    def _outcome(self) -> PunaError | None:
        try:
            reply = self.process.receive(_PATIENCE_S)
        except TimeoutError:
            return RequestError(_exceeded(f"{_PATIENCE_S:g} s"))
        except PunaError as error:
            return error
        match reply:
            case Compiled(size_bytes=size_bytes):
                self.size_bytes = size_bytes
                return None
            case CompilerFailure(kind=kind, message=message):
                return _failure(kind, message)
            case Ended(status=status) if status in OUT_OF_TIME:
                return RequestError(_exceeded(f"{COMPILE_S:g} s of processor time"))
            case Ended(status=status) if status in (*OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGKILL):
                return RequestError(_exceeded(f"{MEMORY_BYTES >> 20} MB of memory"))
            case Ended(status=status):
                return RequestError(
                    f"format: it ended the process that compiles it (status {status}); simplify it"
                )
        return RunnerError("the process that compiles formats broke its protocol")


def _failure(kind: str, message: str) -> PunaError:
    """Return the error a process reports; a defect of ours goes to the log, not to clients."""
    if kind == RunnerError.__name__:
        _log.error("a grammar process failed: %s", message)
        message = "internal error in the process that follows formats of answers; the log says more"
    return PunaError.of_kind(kind, message)


def _exceeded(limit: str) -> str:
    return (
        f"format: compiling it was stopped: it took more than {limit}, the limit for one format; simplify it"
    )


class RemoteConstraint:
    """The constraint of one answer, followed in a process of its own that starts with `prepare`.

    `accept` and `allowed` wait for the process unless it is `ready`. For one thread at a time.
    """

    def __init__(self, compiler: Compiler, task: bytes) -> None:
        self._compiler = compiler
        self._task = task
        self._process: _Process | None = None
        self._due: deque[Literal["followed", "mask", "rows"]] = deque()
        self._state = Followed(True, False, False, [])
        self._mask: NDArray[np.int32] = np.empty(0, np.int32)
        self._drafts: deque[int] = deque()  # for each, `_rows` has the mask after it
        self._rows: deque[NDArray[np.int32]] = deque()
        self._rejected: list[int] = []
        self._error: PunaError | None = None
        self._mask_s = 0.0
        self.offered: int | None = None  # a token that was drawn and is still being followed
        self._instead: int | None = None  # of it, where it could stand

    @property
    def finished(self) -> bool:
        """Whether the answer is complete, and nothing can follow."""
        return self._state.finished

    @property
    def answering(self) -> bool:
        """Whether the next token belongs to the answer, not to the thinking before it."""
        return self._state.answering

    @property
    def slow(self) -> bool:
        """Whether masks take long, so that there should be none for drafts."""
        return self._mask_s > _SLOW_S

    @property
    def ready(self) -> bool:
        """Whether the next token can be drawn, or the one that was drawn has been followed."""
        if self._error is not None:
            return True
        return not self._due if self.offered is None else "followed" not in self._due

    def forced(self) -> list[int]:
        """The tokens that certainly come next."""
        return self._state.forced

    def prepare(self, drafts: list[int]) -> None:
        """Begin to find out what may come next, and after each of `drafts`."""
        if self._due or self.offered is not None:
            return
        self._drafts.clear()
        self._rows.clear()
        if self._process is None and self._error is None:
            try:
                self._process = self._compiler.fork(self._task)
            except PunaError as error:
                self._error = error
                return
            self._ask(Begin(FOLLOW_S), "followed", "mask")
        if drafts and self._state.answering:
            self._drafts.extend(drafts)
            self._ask(LookAhead(drafts), "rows")

    def offer(self, token: int, instead: int | None = None) -> None:
        """Begin to follow `token`, which was drawn; `accept` says whether it stands.

        If it could, and `instead` is given, that is followed in its place.
        """
        self.offered = token
        self._instead = None if instead == token else instead
        known = bool(self._rows) and self._drafts[0] == self._next
        self._ask(Follow(token, not known, self._instead), "followed", *(() if known else ("mask",)))

    @property
    def _next(self) -> int | None:
        """The token that is followed if the offered one can stand."""
        return self.offered if self._instead is None else self._instead

    def accept(self, token: int) -> bool:
        """Follow `token`. Return False if it cannot stand: it is not among the `allowed` from then on.

        Raises `FormatError` when following exceeds a limit.
        """
        if self.offered is None:
            self.offer(token)
        assert self.offered == token
        self._wait_for("followed")
        following, self.offered = self._next, None
        if not self._state.taken:
            self._rejected.append(token)
            return False
        self._rejected.clear()
        if self._rows and self._drafts.popleft() == following:
            self._mask = self._rows.popleft()
        else:
            self._rows.clear()
        return True

    def allowed(self) -> NDArray[np.int32]:
        """Return the tokens that may come next: bit i of word w is for token 32 w + i.

        Raises `FormatError` when following exceeds a limit.
        """
        if self._process is None:
            self.prepare([])
        self._wait_for("mask", "rows")
        if not self._rejected:
            return self._mask
        return self._mask & ~mask_of(self._rejected, len(self._mask))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end()
            self._error = self._error or FormatError("the answer has ended")

    def fileno(self) -> int:
        assert self._process is not None
        return self._process.connection.fileno()

    def hear(self) -> None:
        """Receive the next reply, which has begun to arrive."""
        assert self._process is not None
        try:
            reply = self._process.receive(_REPLY_PATIENCE_S)
        except TimeoutError:
            self._error = FormatError(
                f"the process that follows the answer's format was silent for {_REPLY_PATIENCE_S:g} s"
            )
            return
        except PunaError as error:
            self._error = error
            return
        due = self._due.popleft() if self._due else ""
        match reply:
            case Followed() if due == "followed":
                self._state = reply
                if (not reply.taken or reply.finished) and self._due and self.offered is not None:
                    self._due.popleft()  # there is no mask
            case Masks(rows=rows, seconds=seconds) if due == "mask":
                self._mask, self._mask_s = np.frombuffer(rows, np.int32), seconds
            case Masks(rows=rows) if due == "rows":
                self._rows.extend(np.frombuffer(rows, np.int32).reshape(-1, len(self._mask)))
            case CompilerFailure(kind=kind, message=message):
                self._error = _failure(kind, message)
            case Ended(status=status):
                self._error = _stopped(status)
            case _:
                self._error = RunnerError("the process that follows formats broke its protocol")

    def _ask(self, message: ToProcess, *replies: Literal["followed", "mask", "rows"]) -> None:
        if self._error is None and self._process is not None:
            self._process.send(message)
            self._due.extend(replies)

    def _wait_for(self, *kinds: str) -> None:
        while self._error is None and any(kind in self._due for kind in kinds):
            self.hear()
        if self._error is not None:
            raise self._error


def _stopped(status: int) -> PunaError:
    """Return the error of an answer whose process has ended with `status`."""
    if status in OUT_OF_TIME:
        limit = f"{FOLLOW_S:g} s of processor time"
    elif status in (*OUT_OF_MEMORY, -signal.SIGABRT, -signal.SIGKILL):
        limit = f"{MEMORY_BYTES >> 20} MB of memory"
    else:
        return FormatError(f"the answer's format ended the process that follows it (status {status})")
    return FormatError(
        f"the answer's format cannot be followed further: it took more than {limit}, "
        "the limit for one answer; simplify it"
    )


def wait(constraints: Iterable[RemoteConstraint], timeout_s: float) -> None:
    """Wait until all constraints are `ready`, or that time is over."""
    waiting = [each for each in constraints if not each.ready]
    deadline = time.monotonic() + timeout_s
    while waiting:
        poll = select.poll()
        by_number = {each.fileno(): each for each in waiting}
        for number in by_number:
            poll.register(number, select.POLLIN)
        found = poll.poll(max(deadline - time.monotonic(), 0) * 1e3)
        for number, _ in found:
            by_number[number].hear()
        if not found:
            return
        waiting = [each for each in waiting if not each.ready]
