"""Long work: threads of its own, and slots for which clients take turns."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from puna.errors import ServerBusyError

T = TypeVar("T")


def in_own_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Start `work` in a thread, and return the future of its result.

    The thread does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def end(set_outcome: Callable[[], None]) -> None:
        if not done.cancelled():
            set_outcome()
            done.exception()  # marks the error as seen, because the client may have left

    def run() -> None:
        outcome: Callable[[], None]
        try:
            outcome = partial(done.set_result, work())
        except BaseException as error:
            outcome = partial(done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
            loop.call_soon_threadsafe(end, outcome)

    threading.Thread(target=run, name="work", daemon=True).start()
    return done


#: One thread for parsing: the longest templates take a second each, and then only delay each other.
_parser = ThreadPoolExecutor(1, thread_name_prefix="puna-parser")


async def parsing(work: Callable[[], T]) -> T:
    """Return the result of `work`, which parses templates, from the parser's thread."""
    return await asyncio.get_running_loop().run_in_executor(_parser, work)


class WorkSlot:
    """A slot for work, or a place in the queue for one, until `leave`."""

    def __init__(self, turns: WorkSlots, client: str, kind: str) -> None:
        self.client = client
        self.kind = kind
        self.has_come = False
        self._turns = turns
        self._changed = asyncio.Event()

    async def waiting(self) -> AsyncIterator[int]:
        """Yield the number of slots ahead, whenever it changes, until this one's turn has come."""
        reported = -1
        while not self.has_come:
            ahead = self._turns.ahead_of(self)
            if ahead != reported:
                reported = ahead
                yield ahead
                continue  # the turn may have come meanwhile
            self._changed.clear()
            await self._changed.wait()

    def leave(self) -> None:
        """Give up the slot or the place in the queue."""
        self._turns.remove(self)

    def notify(self) -> None:
        self._changed.set()


class WorkSlots:
    """Slots for `places` pieces of work, at most `of_client` of one client and `of_kind` of one kind.

    The next slot goes to the client with the fewest, and among those to the longest waiting. All methods
    belong to the event loop.
    """

    def __init__(self, places: int, *, of_client: int, of_kind: int, longest_queue: int) -> None:
        self._places = places
        self._of_client = of_client
        self._of_kind = of_kind
        self._longest_queue = longest_queue
        self._working: list[WorkSlot] = []
        self._queue: list[WorkSlot] = []

    def enter(self, client: str, kind: str = "") -> WorkSlot:
        """Return a slot for work of one `kind` of `client`. Raises ServerBusyError if too many wait."""
        turn = WorkSlot(self, client, kind)
        self._queue.append(turn)
        self._advance()
        if not turn.has_come and len(self._queue) > self._longest_queue:
            self._queue.remove(turn)
            raise ServerBusyError("server busy, please try again.  maximum pending requests exceeded")
        return turn

    def ahead_of(self, turn: WorkSlot) -> int:
        """Return how many slots are in use or ahead in the queue of `turn`, which waits."""
        return len(self._working) + self._queue.index(turn)

    def remove(self, turn: WorkSlot) -> None:
        for turns in (self._working, self._queue):
            if turn in turns:
                turns.remove(turn)
        self._advance()

    def _advance(self) -> None:
        """Give free slots to those whose turn it is."""
        while len(self._working) < self._places:
            able = [turn for turn in self._queue if self._may_come(turn)]
            if not able:
                break
            turn = min(able, key=lambda turn: self._places_of(turn.client))  # the first of several
            self._queue.remove(turn)
            self._working.append(turn)
            turn.has_come = True
            turn.notify()
        for turn in self._queue:
            turn.notify()

    def _may_come(self, turn: WorkSlot) -> bool:
        of_kind = sum(other.kind == turn.kind for other in self._working)
        return of_kind < self._of_kind and self._places_of(turn.client) < self._of_client

    def _places_of(self, client: str) -> int:
        return sum(other.client == client for other in self._working)
