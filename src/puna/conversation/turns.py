"""Requests that wait for the renderer: those whose templates have been quick go first."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from puna.errors import RunnerError

_log = logging.getLogger(__name__)

#: Seconds that a template is assumed to take of which nothing is known.
_UNKNOWN_S: Final = 0.5
#: Templates whose time is remembered.
_REMEMBERED: Final = 256


@dataclass(order=True)
class _Waiting:
    expected_s: float
    number: int
    request_id: int = field(compare=False)
    template: bytes = field(compare=False)
    work: Callable[[], None] = field(compare=False)
    give_up: Callable[[], None] = field(compare=False)


class Turns:
    """Does one piece of work after the other, on a thread of its own that starts with the first.

    So a template that is slow time after time holds up only those that are no better or not yet known, and
    everybody else for one of its turns at most.
    """

    def __init__(self, cancel: Callable[[int], None]) -> None:
        """`cancel` stops a request whose turn is over."""
        self._cancel = cancel
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._numbers = itertools.count()
        self._seconds: OrderedDict[bytes, float] = OrderedDict()  # of each template's turns, late ones most
        self._at_work: _Waiting | None = None
        self._cancelled = False  # the one at work
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(
        self, request_id: int, template: bytes, work: Callable[[], None], give_up: Callable[[], None]
    ) -> None:
        """Have `work` called, or `give_up` if `close` comes first or it raises.

        `template` is the digest of the one to be rendered. Raises RunnerError once closed.
        """
        with self._changed:
            if self._closed:
                raise RunnerError("the engine is shutting down")
            expected_s = self._seconds.get(template, _UNKNOWN_S)
            turn = _Waiting(expected_s, next(self._numbers), request_id, template, work, give_up)
            heapq.heappush(self._waiting, turn)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="puna-templates", daemon=True)
                thread.start()
                self._thread = thread
            self._changed.notify()

    def cancel(self, request_id: int) -> None:
        """Stop a request, whether it waits, is at work (then when that is done), or has had its turn."""
        with self._changed:
            if self._at_work is not None and self._at_work.request_id == request_id:
                self._cancelled = True
                return
            others = [turn for turn in self._waiting if turn.request_id != request_id]
            if len(others) < len(self._waiting):
                heapq.heapify(others)
                self._waiting = others
                return
        self._cancel(request_id)

    def close(self) -> None:
        """Give up what waits."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            self._changed.notify()
        for turn in waiting:
            turn.give_up()
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                turn = self._at_work = heapq.heappop(self._waiting)
                self._cancelled = False
            began = time.monotonic()
            try:
                turn.work()
            except Exception:  # too little memory for the error itself, say
                _log.exception("a request could not be prepared")
                turn.give_up()
            with self._changed:
                self._at_work = None
                cancelled = self._cancelled
                self._note(turn.template, time.monotonic() - began)
            if cancelled:
                self._cancel(turn.request_id)
            del turn  # with the messages in it, while this thread waits

    def _note(self, template: bytes, seconds: float) -> None:
        before = self._seconds.pop(template, seconds)
        self._seconds[template] = (before + seconds) / 2
        if len(self._seconds) > _REMEMBERED:
            self._seconds.popitem(last=False)
