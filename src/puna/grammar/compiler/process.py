"""A grammar process, which compiles a format or follows an answer, and dies if that exceeds its limits."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import socket
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from puna.confined import LENGTH, bounds, encoded, end_out_of_memory, exactly, settle
from puna.errors import PunaError, RequestError, RunnerError
from puna.gguf import open_gguf
from puna.grammar.compiled import Grammars
from puna.grammar.compiler.protocol import (
    COMPILE_S,
    MEMORY_BYTES,
    QUICK_S,
    Begin,
    Compile,
    Compiled,
    CompilerFailure,
    CompilerReady,
    End,
    Ended,
    Follow,
    Followed,
    Fork,
    FormatTask,
    FromProcess,
    LookAhead,
    Masks,
    OpenVocabulary,
    ToProcess,
)
from puna.grammar.constraint import Constraint
from puna.system.memory import limited_bytes, private_bytes
from puna.tokenizer import tokenizer_from_gguf

_CONNECTION: Final = 0  # the first process's file descriptor

T = TypeVar("T")

_decoder: msgspec.msgpack.Decoder[ToProcess] = msgspec.msgpack.Decoder(ToProcess)


def main() -> None:
    """Serve requests until the owner hangs up."""
    settle()
    with contextlib.suppress(ConnectionError):  # the owner is gone
        _Process(socket.socket(fileno=_CONNECTION)).serve()
    os._exit(0)


class _Process:
    """The root, a format's process or an answer's: each has what its parent has, and more."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._grammars: Grammars | None = None
        self._constraint: Constraint | None = None
        self._seconds = 0.0  # left for an answer
        self._address_space = 0
        self._forks: dict[int, tuple[int, socket.socket]] = {}  # by process id
        signal.signal(signal.SIGCHLD, lambda *_: self._report(os.WNOHANG))

    def serve(self) -> None:
        while (received := self._receive()) is not None:
            message, descriptor = received
            match message:
                case Fork(number=number):
                    assert descriptor is not None
                    self._fork(number, socket.socket(fileno=descriptor))
                case End(number=number):
                    for process, (other, _) in [*self._forks.items()]:
                        if other == number:  # not waited for yet, so the id cannot have been reused
                            os.kill(process, signal.SIGKILL)
                case _:
                    self._answer(message)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        while self._forks:  # answers may outlive the owner's connection
            self._report()

    def _fork(self, number: int, connection: socket.socket) -> None:
        gc.freeze()  # garbage collection would copy shared pages
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        try:
            process = os.fork()
            if process:
                self._forks[process] = number, connection
                return
            self._connection.close()
            for _, other in self._forks.values():
                other.close()
            self._connection, self._forks = connection, {}
            self._address_space = limited_bytes() + MEMORY_BYTES
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 2)  # libraries print that they are out of memory
        except OSError as error:
            self._tell(
                connection, CompilerFailure(RunnerError.__name__, f"no process for a grammar: {error}")
            )
            connection.close()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])

    def _report(self, options: int = 0) -> None:
        """Tell the owners of forks that have ended how they ended; without WNOHANG, wait for one."""
        while self._forks:
            process, status = os.waitpid(-1, options)
            if not process:
                return
            _, connection = self._forks.pop(process)
            if code := os.waitstatus_to_exitcode(status):
                self._tell(connection, Ended(code))
            connection.close()

    @staticmethod
    def _tell(connection: socket.socket, message: FromProcess) -> None:
        with contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.send(encoded(message))

    def _answer(self, message: ToProcess) -> None:
        """Reply to `message`. Out of time or memory the process ends, and its parent reports it."""
        try:
            for reply in self._replies(message):
                self._connection.sendall(encoded(reply))
            return
        except PunaError as error:
            failed = CompilerFailure(error.kind, str(error))
        except MemoryError:
            end_out_of_memory()
        except RecursionError:
            failed = CompilerFailure(RequestError.__name__, "format: it is nested too deeply")
        except ConnectionError:
            raise
        except Exception:  # a bug of ours, which must not fail other requests
            failed = CompilerFailure(RunnerError.__name__, f"internal error: {traceback.format_exc()}")
        self._connection.sendall(encoded(failed))

    def _replies(self, message: ToProcess) -> Iterator[FromProcess]:
        match message:
            case OpenVocabulary(path=path):
                self._read_vocabulary(Path(path))
                yield CompilerReady()
            case Compile(task=task):
                with bounds(COMPILE_S, self._address_space):
                    before = private_bytes()
                    self._compile(pickle.loads(task))
                yield Compiled(max(private_bytes() - before, 0))
            case Begin(seconds=seconds):
                self._seconds = seconds
                yield self._within(lambda: self._followed(True))
                yield self._masks(self._of_next)
            case Follow(token=token, mask=mask, instead=instead):
                followed = self._within(lambda: self._followed(self._of_answer.accept(token, instead)))
                yield followed
                if mask and followed.taken and not followed.finished:
                    yield self._masks(self._of_next)
            case LookAhead(drafts=drafts):
                yield self._masks(lambda: b"".join(row.tobytes() for row in self._of_answer.after(drafts)))

    def _read_vocabulary(self, path: Path) -> None:
        """Read the vocabulary, without limits: the model's file is trusted. On failure the process ends."""
        try:
            self._grammars = Grammars(tokenizer_from_gguf(open_gguf(path)))
            _ = self._grammars.vocabulary
        except Exception:
            traceback.print_exc()
            os._exit(1)

    @property
    def _of_answer(self) -> Constraint:
        assert self._constraint is not None
        return self._constraint

    def _compile(self, task: FormatTask) -> None:
        assert self._grammars is not None
        self._constraint = self._grammars.constraint_of(task.format, task.reading)
        self._of_answer.allowed()  # so that all answers share it

    def _followed(self, taken: bool) -> Followed:
        constraint = self._of_answer
        return Followed(taken, constraint.answering, constraint.finished, constraint.forced())

    def _of_next(self) -> bytes:
        return self._of_answer.allowed().tobytes()

    def _masks(self, work: Callable[[], bytes]) -> Masks:
        began = time.perf_counter()
        return Masks(self._within(work), time.perf_counter() - began)

    def _within(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, done in the time that is left for this answer."""
        with bounds(self._seconds, self._address_space) as left:
            result = work()
        if self._seconds - left() > QUICK_S:
            self._seconds = left()
        return result

    def _receive(self) -> tuple[ToProcess, int | None] | None:
        header, descriptors, _, _ = socket.recv_fds(self._connection, LENGTH.size, 1)
        if not header:
            return None
        rest = exactly(self._connection.recv, LENGTH.size - len(header)) or b""
        (length,) = LENGTH.unpack(header + rest)
        body = exactly(self._connection.recv, length)
        return None if body is None else (_decoder.decode(body), descriptors[0] if descriptors else None)
