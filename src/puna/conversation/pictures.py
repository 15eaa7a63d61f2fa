"""Decoding of images for waiting requests: clients take turns, an image each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from puna.batch import Image
from puna.engine.images import Images, ReadingImages
from puna.errors import RunnerError
from puna.protocol import Generate
from puna.turns import ClientRotation, Turn

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Waiting:
    request: Generate
    reading: ReadingImages
    use: Callable[[list[Image]], None]
    fail: Callable[[Exception], None]
    turn: Turn = (0, 0)
    cancelled: bool = False

    @property
    def rank(self) -> tuple[bool, Turn]:
        return self.request.priority == "batch", self.turn


class Pictures:
    """Queue of images to decode, one at a time, on a thread that starts with the first.

    A client waits for at most the image being decoded and the next one of each other client; requests
    without images do not wait.
    """

    def __init__(self, images: Images, cancel: Callable[[int], None]) -> None:
        """Decode with `images`; `cancel` stops a request whose images are ready."""
        self._images = images
        self._cancel = cancel
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []  # the longest wait first
        self._turns = ClientRotation()
        self._at_work: _Waiting | None = None
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(
        self,
        request: Generate,
        files: list[bytes],
        use: Callable[[list[Image]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Call `use` with the images in `files`, or `fail` with their error.

        `use` is called at once if all images are known, and neither for a cancelled request. Raises
        `ImageError` for too many images, and RunnerError once closed.
        """
        one = _Waiting(request, ReadingImages(self._images, files), use, fail)
        if one.reading.done:
            use(one.reading.images)
            return
        with self._changed:
            if self._closed:
                raise RunnerError("the engine is shutting down")
            self._enqueue(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="puna-pictures", daemon=True)
                self._thread.start()
            self._changed.notify()

    def cancel(self, request_id: int) -> None:
        """Stop a request, whether it waits, is at work, or has its images.

        A process decoding its image is ended.
        """
        with self._changed:
            at_work = self._at_work
            if at_work is not None and at_work.request.id == request_id:
                at_work.cancelled = True
                if not at_work.reading.done:
                    self._images.preparer.stop()
                return
            gone = [one for one in self._waiting if one.request.id == request_id]
            self._waiting = [one for one in self._waiting if one not in gone]
            for one in gone:
                if not any(other.request.client == one.request.client for other in self._waiting):
                    self._turns.emptied(one.request.client)
        if not gone:
            self._cancel(request_id)

    def close(self) -> None:
        """Fail all requests, waiting and at work, and end the thread."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            self._changed.notify()
        self._images.preparer.close()
        for one in waiting:
            one.fail(RunnerError("the model was unloaded"))
        if self._thread not in (None, threading.current_thread()):
            self._thread.join()

    def _enqueue(self, one: _Waiting) -> None:
        one.turn = self._turns.take(one.request.client)
        self._waiting.append(one)

    def _run(self) -> None:
        while (one := self._next()) is not None:
            failure: Exception | None = None
            try:
                one.reading.advance()
                if one.reading.done and not one.cancelled:
                    one.use(one.reading.images)
            except Exception as error:
                failure = error
            with self._changed:
                self._at_work = None
                if failure is None and not (one.cancelled or one.reading.done or self._closed):
                    self._enqueue(one)
                    continue
                closed = self._closed
            if one.cancelled:
                self._cancel(one.request.id)
            elif closed:
                one.fail(RunnerError("the model was unloaded"))
            elif failure is not None:
                one.fail(failure)
            del one, failure  # frees the files while this thread waits

    def _next(self) -> _Waiting | None:
        """Return the request whose turn it is; None once closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            one = self._at_work = min(self._waiting, key=lambda waiting: waiting.rank)
            self._waiting.remove(one)
            self._turns.served(one.request.client, one.turn)
            return one
