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


def run_in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
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


async def run_parser(work: Callable[[], T]) -> T:
    """Return the result of `work`, which parses templates, from the parser's thread."""
    return await asyncio.get_running_loop().run_in_executor(_parser, work)


class WorkSlot:
    """A slot for work, or a place in the queue for one, until `leave`."""

    def __init__(self, slots: WorkSlots, client: str, kind: str) -> None:
        self.client = client
        self.kind = kind
        self.is_granted = False
        self._slots = slots
        self._changed = asyncio.Event()

    async def waiting(self) -> AsyncIterator[int]:
        """Yield the number of slots ahead, whenever it changes, until this one is granted."""
        reported = -1
        while not self.is_granted:
            ahead = self._slots.ahead_of(self)
            if ahead != reported:
                reported = ahead
                yield ahead
                continue  # the slot may have been granted meanwhile
            self._changed.clear()
            await self._changed.wait()

    def leave(self) -> None:
        """Give up the slot or the place in the queue."""
        self._slots.remove(self)

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
        slot = WorkSlot(self, client, kind)
        self._queue.append(slot)
        self._advance()
        if not slot.is_granted and len(self._queue) > self._longest_queue:
            self._queue.remove(slot)
            raise ServerBusyError("server busy, please try again.  maximum pending requests exceeded")
        return slot

    def ahead_of(self, slot: WorkSlot) -> int:
        """Return how many slots are in use, or ahead of `slot` in the queue."""
        return len(self._working) + self._queue.index(slot)

    def remove(self, slot: WorkSlot) -> None:
        for slots in (self._working, self._queue):
            if slot in slots:
                slots.remove(slot)
        self._advance()

    def _advance(self) -> None:
        """Grant free slots to those whose turn it is."""
        while len(self._working) < self._places:
            able = [slot for slot in self._queue if self._is_allowed(slot)]
            if not able:
                break
            slot = min(able, key=lambda slot: self._places_of(slot.client))  # the first of several
            self._queue.remove(slot)
            self._working.append(slot)
            slot.is_granted = True
            slot.notify()
        for slot in self._queue:
            slot.notify()

    def _is_allowed(self, slot: WorkSlot) -> bool:
        of_kind = sum(other.kind == slot.kind for other in self._working)
        return of_kind < self._of_kind and self._places_of(slot.client) < self._of_client

    def _places_of(self, client: str) -> int:
        return sum(other.client == client for other in self._working)
