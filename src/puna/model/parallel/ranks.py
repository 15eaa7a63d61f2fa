"""The processes of the ranks other than 0, as rank 0 sees them."""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeVar

from puna.errors import InsufficientMemoryError, ModelLostError, RunnerError, UnavailableError
from puna.model.parallel.wire import (
    CacheMade,
    FromRank,
    LoadShare,
    Meet,
    OwnerConnection,
    ShareLoaded,
    ShareRefused,
)
from puna.model.split.wire import Broken, MakeCache, StageMessage

if TYPE_CHECKING:
    from puna.ops.collectives import Collectives

T = TypeVar("T", ShareLoaded, CacheMade)

log = logging.getLogger("puna.parallel")

#: How long a failed operation waits for the news that a rank has ended, and why.
_NEWS_S: Final = 2.0
#: How long a rank may take to end once its connection is closed.
_END_S: Final = 10.0
#: How long a pass may take, in which kernels may have to be compiled, and how often that is looked at.
_PASS_S: Final = 300.0
_LOOK_S: Final = 5.0


class OtherRank:
    """A rank in another process, and its answers."""

    def __init__(
        self, rank: int, sock: socket.socket, process: subprocess.Popen[bytes] | None = None
    ) -> None:
        """The other end of `sock` is the rank's; `process` is None if something else ends it."""
        self.rank = rank
        self.process = process
        self.connection = OwnerConnection(sock, FromRank)
        self.answers: SimpleQueue[FromRank | ModelLostError] = SimpleQueue()

    @classmethod
    def started(cls, rank: int) -> OtherRank:
        """Start the process of a rank. Raises `UnavailableError`."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(
                    [sys.executable, "-m", "puna.model.rank", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    process_group=0,  # keeps Ctrl-C in a terminal away from it
                )
        except OSError as error:
            ours.close()
            raise UnavailableError(f"cannot start a process for rank {rank}: {error}") from error
        return cls(rank, ours, process)

    def end_in_words(self) -> str:
        """Describe how the process ended, after its connection did."""
        if self.process is None:
            return "has ended"
        try:
            status = self.process.wait(_NEWS_S)
        except subprocess.TimeoutExpired:
            return "has closed its connection"
        return f"was killed by signal {-status}" if status < 0 else f"has ended with status {status}"

    def close(self) -> None:
        """Close the connection, which ends the process."""
        self.connection.close()
        if self.process is None:
            return
        try:
            self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it
                self.process.wait(_END_S)


class OtherRanks:
    """All ranks but 0. Once one of them is lost, none is of use any more, and `on_loss` is called."""

    def __init__(self, ranks: Sequence[OtherRank]) -> None:
        self.ranks = list(ranks)
        self.loaded: list[ShareLoaded] = []
        self.room_bytes: list[int] = []  # for the cache of each, when it was asked last
        self.on_loss: Callable[[ModelLostError], object] = lambda _: None
        self._group: Collectives | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="puna-ranks-"))  # for this user alone
        self._news = threading.Event()
        self._lost: ModelLostError | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._deadline = math.inf  # of the running pass
        threading.Thread(target=self._keep_time, name="puna-ranks-clock", daemon=True).start()
        for each in self.ranks:
            threading.Thread(target=self._watch, args=[each], name="puna-ranks", daemon=True).start()

    @classmethod
    def started(cls, orders: Sequence[LoadShare]) -> OtherRanks:
        """Start the processes, each of which loads what its order says. Raises `UnavailableError`."""
        ranks: list[OtherRank] = []
        try:
            ranks.extend(OtherRank.started(each.rank) for each in orders)
        except UnavailableError:
            for rank in ranks:
                rank.close()
            raise
        found = cls(ranks)
        for rank, order in zip(ranks, orders, strict=True):
            with contextlib.suppress(ModelLostError):  # which the first answer raises again
                found._send(rank, order)
        return found

    def await_shares(self) -> None:
        """Wait until all ranks have their weights.

        Raises `InsufficientMemoryError`, `ModelLostError`, and `UnavailableError` for other reasons.
        """
        self.loaded = [self._answer(each, ShareLoaded) for each in self.ranks]
        self.room_bytes = [each.room_bytes for each in self.loaded]

    def meet(self, join: Callable[[Path], Collectives]) -> Collectives:
        """Return what `join` does with a file, once all ranks do the same. Raises `ModelLostError`."""
        meeting = self._folder / "meeting"
        self.tell(Meet(meeting=str(meeting)))
        try:
            self._group = join(meeting)
        except RuntimeError as error:
            raise self.failed(error) from error
        return self._group

    def tell(self, message: StageMessage) -> None:
        """Send a message to all ranks. Raises `ModelLostError`."""
        for each in self.ranks:
            self._send(each, message)

    def command(self, message: StageMessage) -> None:
        """Have the caches of all ranks change as the one here did; without them, the next pass fails."""
        with contextlib.suppress(ModelLostError):
            self.tell(message)

    def make_caches(self, message: MakeCache) -> None:
        """Make the caches of all ranks. Raises `ModelLostError`."""
        self.tell(message)
        self.room_bytes = [self._answer(each, CacheMade).room_bytes for each in self.ranks]
        # All have met now, and a process that is killed would leave it.
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextlib.contextmanager
    def in_pass(self) -> Iterator[None]:
        """Limit the time of the operations with other ranks in this context.

        Raises `ModelLostError` afterwards if a rank was lost: operations may then have ended without an error
        and without a result.
        """
        self._deadline = time.monotonic() + _PASS_S
        try:
            yield
        finally:
            self._deadline = math.inf
        if self._lost is not None:
            raise self._lost

    def failed(self, error: Exception) -> ModelLostError:
        """Give up after `error` in an operation with other ranks, and return why: the loss of one, if so."""
        self._news.wait(_NEWS_S)
        return self.give_up(f"rank 0: {type(error).__name__}: {error}")

    def give_up(self, reason: str) -> ModelLostError:
        """Use the ranks no more, and return an error that says why: the first reason there was."""
        with self._lock:
            first = self._lost is None
            lost = self._lost = self._lost or ModelLostError(f"a part of the model is lost: {reason}")
        self._news.set()
        if first:
            for each in self.ranks:
                each.answers.put(lost)
                each.connection.close()
            if self._group is not None:  # NCCL may wait for what is gone
                threading.Thread(target=self._group.abort, name="puna-ranks-abort", daemon=True).start()
        return lost

    def close(self) -> None:
        """End the processes, unless that has been done."""
        if self._closed:
            return
        self._closed = True
        self._news.set()
        for each in self.ranks:
            each.close()
        if self._group is not None:
            self._group.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, rank: OtherRank, message: StageMessage) -> None:
        if self._lost is not None:
            raise self._lost
        try:
            rank.connection.send(message)
        except (OSError, RunnerError) as error:
            raise self.failed(error) from error

    def _answer(self, rank: OtherRank, kind: type[T]) -> T:
        message = rank.answers.get()
        match message:
            case ModelLostError():
                raise message
            case ShareRefused(needed=0):
                raise UnavailableError(f"rank {rank.rank}: {message.reason}")
            case ShareRefused():
                raise InsufficientMemoryError(message.reason, message.needed, message.available)
        if not isinstance(message, kind):
            raise self.give_up(f"rank {rank.rank} answered {type(message).__name__}, not {kind.__name__}")
        return message

    def _watch(self, rank: OtherRank) -> None:
        """Receive what a rank answers, and notice its end."""
        reason = ""
        try:
            while (received := rank.connection.receive()) is not None:
                message, _ = received
                if isinstance(message, Broken):
                    reason = f"rank {rank.rank}: {message.reason}"
                    break
                rank.answers.put(message)
        except (OSError, RunnerError) as broken:
            log.debug("the connection of rank %d broke: %s", rank.rank, broken)
        if not self._closed and self._lost is None:
            self._lose(reason or f"rank {rank.rank} {rank.end_in_words()}")

    def _keep_time(self) -> None:
        """Give up when a pass takes too long: NCCL's operations wait for ever."""
        while not self._news.wait(_LOOK_S):
            if time.monotonic() > self._deadline:
                self._lose(f"a rank has kept others waiting for {_PASS_S:.0f} s")

    def _lose(self, reason: str) -> None:
        lost = self.give_up(reason)
        log.error("%s", lost)
        self.on_loss(lost)
