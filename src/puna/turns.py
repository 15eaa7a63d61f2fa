"""Turns of waiting work: rounds that are fair to clients, and queues of work for a few threads.

Sequences of the engine, images to decode, recordings to transcribe and models to load take turns by client.
Templates to render and formats to compile take turns by their expected time.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from puna.errors import RunnerError

_log = logging.getLogger(__name__)

#: Assumed seconds of work of an unknown kind.
_UNKNOWN_S: Final = 0.5
#: Kinds of work whose times are remembered.
_REMEMBERED: Final = 256

#: A round and the client's place in it. Lower turns are served first.
Turn = tuple[int, int]


class ClientRotation:
    """Rounds in which each client has one turn, always in the same order of clients.

    An item gets the round after its client's previous one, but never a round that is over. So no waiting item
    is overtaken forever, and a client's next item comes after at most one waiting item of each other client,
    however many they have. (Start-time fair queueing, Goyal et al., 1996, at equal costs.)
    """

    def __init__(self) -> None:
        self._round = 0  # the latest round from which an item was served
        self._served: set[str] = set()  # clients that have had their turn in that round
        self._latest: dict[str, Turn] = {}  # each client's last turn, unless its round is over
        self._places = 0

    def take(self, client: str) -> Turn:
        """Return the turn of a new item of `client`."""
        if client in self._latest:
            latest, place = self._latest[client]
            turn = max(self._round, latest + 1), place
        else:
            self._places += 1
            turn = self._round, self._places
        self._latest[client] = turn
        return turn

    def served(self, client: str, turn: Turn) -> None:
        """Note that the item of `client` with this turn is being served."""
        if turn[0] > self._round:
            self._round = turn[0]
            self._served = set()
            self._latest = {name: latest for name, latest in self._latest.items() if latest[0] >= turn[0]}
        if turn[0] == self._round:
            self._served.add(client)

    def emptied(self, client: str) -> None:
        """Note that `client` has withdrawn all of its waiting items; their turns no longer count."""
        latest = self._latest.pop(client, None)
        if latest is not None and client in self._served:
            self._latest[client] = self._round, latest[1]


@dataclass(order=True)
class _Waiting:
    expected_s: float
    number: int  # by order of arrival
    request_id: int = field(compare=False)
    kind: bytes = field(compare=False)
    work: Callable[[], None] = field(compare=False)
    give_up: Callable[[], None] = field(compare=False)


class _Workers:
    """Threads of a queue, which start when needed; all but `join` with the queue's lock held."""

    def __init__(self, run: Callable[[], None], name: str, most: int) -> None:
        """Start at most `most` threads, each of which calls `run` once."""
        self._run = run
        self._name = name
        self._most = most
        self._threads: list[threading.Thread] = []

    def start_for(self, pieces: int) -> None:
        """Start a thread if there are more `pieces` of work than threads."""
        if len(self._threads) < min(pieces, self._most):
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def join(self) -> None:
        """Wait for the end of all threads but the caller's."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


class RenderQueue:
    """A queue of work for a few threads, which start when needed; work expected to be quick goes first.

    A consistently slow template or format thus delays only work that is as slow or unknown, and anything else
    by at most one of its turns.
    """

    def __init__(
        self,
        cancel: Callable[[int], None],
        *,
        name: str = "puna-templates",
        threads: int = 1,
        stop: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Use `cancel` to stop a request after its turn, and `stop` during it, if possible."""
        self._cancel = cancel
        self._stop = stop
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._numbers = itertools.count()
        self._seconds: OrderedDict[bytes, float] = OrderedDict()  # moving average of each kind's turns
        self._at_work: dict[int, bool] = {}  # request ids, and whether they were cancelled
        self._closed = False
        self._workers = _Workers(self._run, name, threads)

    def add(
        self, request_id: int, kind: bytes, work: Callable[[], None], give_up: Callable[[], None]
    ) -> None:
        """Call `work` in its turn; call `give_up` if it raises, or if `close` comes first.

        `kind` is the digest of a template or a format; work of one kind is expected to take as long as
        before. Raises RunnerError once closed.
        """
        with self._changed:
            if self._closed:
                raise RunnerError("the engine is shutting down")
            expected_s = self._seconds.get(kind, _UNKNOWN_S)
            turn = _Waiting(expected_s, next(self._numbers), request_id, kind, work, give_up)
            heapq.heappush(self._waiting, turn)
            self._workers.start_for(len(self._at_work) + len(self._waiting))
            self._changed.notify()

    def cancel(self, request_id: int) -> None:
        """Stop a request, whether it is waiting, at work, or has had its turn."""
        with self._changed:
            if at_work := request_id in self._at_work:
                self._at_work[request_id] = True
            others = [turn for turn in self._waiting if turn.request_id != request_id]
            if len(others) < len(self._waiting):
                heapq.heapify(others)
                self._waiting = others
                return
        if at_work:
            self._stop(request_id)
        else:
            self._cancel(request_id)

    def close(self) -> None:
        """Give up all waiting work, stop the work in progress, and end the threads."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            at_work = [*self._at_work]
            self._changed.notify_all()
        for turn in waiting:
            turn.give_up()
        for request_id in at_work:
            self._stop(request_id)
        self._workers.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                turn = heapq.heappop(self._waiting)
                self._at_work[turn.request_id] = False
            began = time.monotonic()
            try:
                turn.work()
            except Exception:  # for example, no memory left to report the error
                _log.exception("a request could not be prepared")
                turn.give_up()
            with self._changed:
                cancelled = self._at_work.pop(turn.request_id)
                self._note(turn.kind, time.monotonic() - began)
            if cancelled:
                self._cancel(turn.request_id)
            del turn  # frees the messages while this thread waits

    def _note(self, kind: bytes, seconds: float) -> None:
        before = self._seconds.pop(kind, seconds)
        self._seconds[kind] = (before + seconds) / 2
        if len(self._seconds) > _REMEMBERED:
            self._seconds.popitem(last=False)


class WorkInParts(Protocol):
    """Work on a request that is done in parts, with other requests' parts between them."""

    @property
    def done(self) -> bool:
        """Whether no part is left."""

    def advance(self) -> None:
        """Do the next part."""

    def finish(self) -> None:
        """Take note that all parts are done."""

    def fail(self, error: Exception) -> None:
        """Take note that a part has failed, or that there will be no more."""

    def stop(self) -> None:
        """Make the part that another thread is doing end soon, with an error."""


@dataclass(eq=False)
class _PartsOf:
    request_id: int
    client: str
    batch: bool
    work: WorkInParts
    turn: Turn = (0, 0)
    cancelled: bool = False

    @property
    def rank(self) -> tuple[bool, Turn]:
        return self.batch, self.turn


class PartQueue:
    """A queue of work in parts for a few threads, which start when needed.

    A client waits for at most the parts being done and the next one of each other client.
    """

    def __init__(self, name: str, cancel: Callable[[int], None], *, threads: int = 1) -> None:
        """Use `cancel` to stop a request that is not in the queue any more."""
        self._cancel = cancel
        self._changed = threading.Condition()
        self._waiting: list[_PartsOf] = []  # the longest wait first
        self._turns = ClientRotation()
        self._at_work: dict[int, _PartsOf] = {}  # by request id
        self._closed = False
        self._workers = _Workers(self._run, name, threads)

    def add(self, request_id: int, work: WorkInParts, *, client: str = "", batch: bool = False) -> None:
        """Do all parts of `work`, then let it `finish`; on an error let it `fail`.

        Neither is called for a cancelled request. With `batch`, it waits for all other work. Raises
        RunnerError once closed.
        """
        with self._changed:
            if self._closed:
                raise RunnerError("the engine is shutting down")
            self._enqueue(_PartsOf(request_id, client, batch, work))
            self._workers.start_for(len(self._at_work) + len(self._waiting))
            self._changed.notify()

    @property
    def at_work(self) -> int:
        """Number of requests of which a part is being done."""
        return len(self._at_work)

    @property
    def held(self) -> int:
        """Number of requests that wait or are at work."""
        with self._changed:
            return len(self._waiting) + len(self._at_work)

    def cancel(self, request_id: int) -> None:
        """Stop a request, whether it waits, is at work, or has left the queue."""
        with self._changed:
            if (one := self._at_work.get(request_id)) is not None:
                one.cancelled = True
                one.work.stop()
                return
            gone = [one for one in self._waiting if one.request_id == request_id]
            self._waiting = [one for one in self._waiting if one not in gone]
            for one in gone:
                if not any(other.client == one.client for other in self._waiting):
                    self._turns.emptied(one.client)
        if not gone:
            self._cancel(request_id)

    def close(self) -> None:
        """Fail all requests, waiting and at work, and end the threads."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            for one in self._at_work.values():
                one.work.stop()
            self._changed.notify_all()
        for one in waiting:
            one.work.fail(RunnerError("the model was unloaded"))
        self._workers.join()

    def _enqueue(self, one: _PartsOf) -> None:
        one.turn = self._turns.take(one.client)
        self._waiting.append(one)

    def _run(self) -> None:
        while (one := self._next()) is not None:
            failure: Exception | None = None
            try:
                one.work.advance()
                if one.work.done and not one.cancelled:
                    one.work.finish()
            except Exception as error:
                failure = error
            with self._changed:
                del self._at_work[one.request_id]
                if failure is None and not (one.cancelled or one.work.done or self._closed):
                    self._enqueue(one)
                    self._changed.notify()
                    continue
                closed = self._closed
            if one.cancelled:
                self._cancel(one.request_id)
            elif closed and not one.work.done:
                one.work.fail(RunnerError("the model was unloaded"))
            elif failure is not None:
                one.work.fail(failure)
            del one, failure  # frees the files while this thread waits

    def _next(self) -> _PartsOf | None:
        """Return the request whose turn it is; None once closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            one = min(self._waiting, key=lambda waiting: waiting.rank)
            self._at_work[one.request_id] = one
            self._waiting.remove(one)
            self._turns.served(one.client, one.turn)
            return one
