"""Requests on their way into the engine, beside the thread that receives them and answers pings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Literal, get_args

#: Whether the text of a request takes long.
Kind = Literal["short", "long"]

Prepare = Callable[[], None]


class Preparing:
    """Does what a request takes before the engine has it, in the order of arrival.

    Each kind of request has a thread, so that a text of megabytes holds up none of the others.
    """

    def __init__(self, cancel: Callable[[int], None], on_death: Callable[[BaseException], object]) -> None:
        """`cancel` stops a request in the engine; `on_death` gets what a request must not survive."""
        self._cancel = cancel
        self._on_death = on_death
        self._lock = threading.Lock()
        self._cancelled: dict[int, bool] = {}  # of the requests that are here
        self._queues: dict[Kind, SimpleQueue[tuple[int, Prepare]]] = {}
        for kind in get_args(Kind):
            queue = self._queues[kind] = SimpleQueue()
            thread = threading.Thread(target=self._work, args=(queue,), name=f"puna-{kind}", daemon=True)
            thread.start()

    def add(self, request_id: int, prepare: Prepare, kind: Kind) -> None:
        """Have `prepare` called, which hands the request to the engine or answers it."""
        with self._lock:
            self._cancelled[request_id] = False
        self._queues[kind].put((request_id, prepare))

    def cancel(self, request_id: int) -> None:
        """Stop a request, whether it is still here, or with the engine already."""
        with self._lock:
            if request_id in self._cancelled:
                self._cancelled[request_id] = True  # stopped when it is with the engine, if it began
                return
        self._cancel(request_id)

    def _work(self, queue: SimpleQueue[tuple[int, Prepare]]) -> None:
        try:
            while True:
                request_id, prepare = queue.get()
                if not self._cancelled[request_id]:
                    prepare()
                with self._lock:
                    cancelled = self._cancelled.pop(request_id)
                if cancelled:
                    self._cancel(request_id)
                del prepare  # with the text in it, while this thread waits
        except BaseException as error:
            self._on_death(error)
