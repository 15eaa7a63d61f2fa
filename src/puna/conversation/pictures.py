"""Decoding of images and recordings for waiting requests: clients take turns, a file each."""

from __future__ import annotations

from collections.abc import Callable

from puna.batch import Image, WindowedRecording
from puna.engine.images import Images, ReadingImages
from puna.protocol import Generate
from puna.turns import PartQueue


class _Reading:
    """The images of a request, which are used once all are decoded."""

    def __init__(
        self,
        reading: ReadingImages,
        use: Callable[[list[Image | WindowedRecording]], None],
        fail: Callable[[Exception], None],
        stop: Callable[[], None],
    ) -> None:
        self._reading = reading
        self._use = use
        self._stop = stop
        self.advance = reading.advance
        self.fail = fail

    @property
    def done(self) -> bool:
        return self._reading.done

    def finish(self) -> None:
        self._use(self._reading.images)

    def stop(self) -> None:
        if not self.done:
            self._stop()


class Pictures:
    """Queue of images to decode, one at a time, on a thread that starts with the first.

    Requests without images do not wait.
    """

    def __init__(self, images: Images, cancel: Callable[[int], None]) -> None:
        """Decode with `images`; `cancel` stops a request whose images are ready."""
        self._images = images
        self._queue = PartQueue("puna-pictures", cancel)
        self.cancel = self._queue.cancel  # ends a process that decodes the request's image
        self.close = self._queue.close

    def add(
        self,
        request: Generate,
        files: list[bytes],
        use: Callable[[list[Image | WindowedRecording]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Call `use` with the images and recordings in `files`, or `fail` with their error.

        `use` is called at once if all images are known, and neither for a cancelled request. Raises
        `ImageError` or `AudioError` for too many files, and RunnerError once closed.
        """
        reading = ReadingImages(self._images, files)
        if reading.done:
            use(reading.images)
            return
        work = _Reading(reading, use, fail, self._images.stop)
        self._queue.add(request.id, work, client=request.client, batch=request.priority == "batch")
