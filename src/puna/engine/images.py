"""The images of requests: read once, encoded when a text comes to them, a slice at a time between steps.

An image is known by the hash of its bytes, so that one which is sent again, in the next turn of a
conversation say, is neither decoded nor encoded twice; where the prefix cache has it, it is not even looked
at. What is kept is on the host, and bounded: what was not used for longest goes first.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from puna.batch import Image
from puna.errors import ImageError
from puna.images import ImageLimits, decode
from puna.images.limits import image_limits
from puna.model.memory import IMAGE_STATE_BYTES

if TYPE_CHECKING:
    from puna.engine.sequence import Sequence
    from puna.model.vision.tower import VisionTower
    from puna.nn.vision.attention import Slices
    from puna.ops import Array

log = logging.getLogger("puna.engine")

#: Reading a request's images may take this long; who has more to show asks more than once.
_LONGEST_READING_S = 30.0


class Images:
    """What a vision tower reads, and has read lately."""

    def __init__(self, tower: VisionTower, slice_rows: int, *, kept_bytes: int = IMAGE_STATE_BYTES) -> None:
        self.tower = tower
        self.encoded = 0  # images so far
        self.failed: Image | None = None  # the last one that could not be encoded
        self._slice_rows = slice_rows
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[int, Image] = OrderedDict()  # by digest, the one used last at the end
        self._work: tuple[Image, Slices[Array]] | None = None

    # --- from any thread ---------------------------------------------------------------

    def read(self, files: Iterable[bytes], limits: ImageLimits | None = None) -> list[Image]:
        """The images in some files, which are those of a request.

        Raises `ImageError` that says which one is wrong, and how.
        """
        files, limits = list(files), limits or image_limits()
        limits.check_count(len(files))
        images: list[Image] = []
        began, pixels = time.monotonic(), 0
        for number, data in enumerate(files):
            name = "the image" if len(files) == 1 else f"image {number + 1} of {len(files)}"
            digest = _digest(data)
            image = self._find(digest)
            if image is None:
                picture = decode(data, limits, name)
                pixels += picture.width * picture.height
                if pixels > limits.pixels_together:
                    most = limits.pixels_together
                    raise ImageError(f"the images have more than {most} pixels together: send them smaller")
                prepared = self.tower.prepare(picture)
                image = self._add(Image(digest, prepared, prepared.rows))
            images.append(image)
            if time.monotonic() - began > _LONGEST_READING_S and number + 1 < len(files):
                raise ImageError(
                    f"the request's images take too long: after {_LONGEST_READING_S:.0f} s "
                    f"{number + 1} of {len(files)} were decoded; send fewer, or smaller ones"
                )
        return images

    # --- on the stepping thread --------------------------------------------------------

    def encode(self, running: Iterable[Sequence], patience_s: float) -> bool:
        """Go on with the image wanted first, for a slice and as many more as `patience_s` is time for.

        False when none is wanted. Raises what the tower does; the image is then given up.
        """
        wanted = [unread.image for sequence in running if sequence.images and (unread := sequence.unread)]
        if self._work is not None and not any(image is self._work[0] for image in wanted):
            self._give_up()  # nobody waits for it any more
        if not wanted:
            return False
        image = wanted[0] if self._work is None else self._work[0]
        until = time.monotonic() + patience_s
        try:
            if self._work is None:
                self._work = image, self.tower.encode(image.pixels, self._slice_rows)
            while True:
                next(self._work[1])
                if time.monotonic() >= until:
                    return True
        except StopIteration as end:
            image.states = self.tower.ops.numpy(end.value)
            self._work = None
            self.encoded += 1
            self._trim(running)
        except BaseException:
            self.failed = image
            self._give_up()
            raise
        return True

    def close(self) -> None:
        self._give_up()
        self.tower.keys.release()
        self._known.clear()

    def _give_up(self) -> None:
        if self._work is not None:
            with suppress(Exception):
                self._work[1].close()
        self._work = None

    def _trim(self, running: Iterable[Sequence]) -> None:
        """Forget what was not used for longest, down to `kept_bytes`; what a running text needs stays."""
        needed = {id(each.image) for sequence in running for each in sequence.images}
        with self._lock:
            size = sum(map(_size, self._known.values()))
            for digest, image in list(self._known.items()):
                if size <= self._kept_bytes:
                    return
                if id(image) not in needed:
                    del self._known[digest]
                    size -= _size(image)

    def _find(self, digest: int) -> Image | None:
        with self._lock:
            if digest in self._known:
                self._known.move_to_end(digest)
            return self._known.get(digest)

    def _add(self, image: Image) -> Image:
        with self._lock:  # another request may have come with the same meanwhile
            return self._known.setdefault(image.digest, image)


def _size(image: Image) -> int:
    encoded = 0 if image.states is None else image.states.nbytes
    return int(image.pixels.nbytes) + encoded


def _digest(data: bytes) -> int:
    """64 bits of a file's content that are not 0."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") or 1
