"""Images of requests: decoded once, and encoded in slices between steps, just before they are evaluated.

An image is identified by the hash of its bytes, so that one sent again, for instance in the next turn of a
conversation, is neither decoded nor encoded twice; if the prefix cache has it, it is not encoded at all.
Images are kept on the host up to a limit, and the least recently used are dropped first.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from puna.batch import Image
from puna.errors import ImageError
from puna.model.memory import IMAGE_STATE_BYTES
from puna.vision.limits import ImageLimits, image_limits
from puna.vision.preparer.client import Preparer

if TYPE_CHECKING:
    from puna.engine.sequence import Sequence
    from puna.ops import Array, Backend
    from puna.vision.layers.attention import PatchKeys, Slices
    from puna.vision.tower import Prepared, VisionTower

log = logging.getLogger("puna.engine")


class ReadingImages:
    """The image files of a request, decoded one at a time into `images`; known ones are never decoded."""

    def __init__(self, known: Images, files: list[bytes], limits: ImageLimits | None = None) -> None:
        """Raise `ImageError` for more files than a request may have."""
        self.images: list[Image] = []
        self._known = known
        self._files = files
        self._limits = limits or image_limits()
        self._pixels = 0
        self._seconds = 0.0
        self._limits.check_count(len(files))
        self._digests = [_digest(data) for data in files]
        self._take_known()

    @property
    def done(self) -> bool:
        return len(self.images) == len(self._files)

    def advance(self) -> None:
        """Decode one file, and add known images before and after it.

        Raises `ImageError` with the number of the faulty image, and `PreparerError`.
        """
        self._take_known()  # another request may have decoded them meanwhile
        if not self.done:
            self._decode()
            self._take_known()

    def _take_known(self) -> None:
        for digest in self._digests[len(self.images) :]:
            if (image := self._known.find(digest)) is None:
                return
            self.images.append(image)

    def _decode(self) -> None:
        number, count, limits = len(self.images), len(self._files), self._limits
        name = "the image" if count == 1 else f"image {number + 1} of {count}"
        seconds = limits.seconds_together - self._seconds
        found = self._known.preparer.prepare(self._files[number], name, limits, seconds)
        self._pixels += found.decoded_pixels
        self._seconds += found.seconds
        if self._pixels > limits.pixels_together:
            most = limits.pixels_together
            raise ImageError(f"the images have more than {most} pixels together: send them smaller")
        self.images.append(self._known.add(self._digests[number], found.prepared))
        if self._seconds >= limits.seconds_together and not self.done:
            raise ImageError(
                f"the request's images take too long: after {limits.seconds_together:g} s of processor time "
                f"{number + 1} of {count} were decoded; send fewer, or smaller ones"
            )


class Tower(Protocol):
    """The part of a vision or audio tower that encodes."""

    ops: Backend
    keys: PatchKeys

    @property
    def largest_group(self) -> int:
        """Upper bound of an image's inputs that must share a batch."""

    def encode(self, read: Any, slice_rows: int, /) -> Slices[Array]:
        """Return the states of what it reads: float32 [rows, width]."""


class Encoding:
    """Images encoded by one tower. A window of a recording counts as one, and an audio tower encodes it.

    Its methods are for the stepping thread.
    """

    def __init__(self, tower: Tower, slice_rows: int, *, kept_bytes: int = IMAGE_STATE_BYTES) -> None:
        self._tower = tower
        self.encoded = 0  # images so far
        self.failed: Image | None = None  # the last one that could not be encoded
        self._slice_rows = slice_rows
        self._ahead = slice_rows + tower.largest_group  # inputs; text beside an image may be in its batch
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._known: OrderedDict[int, Image] = OrderedDict()  # by digest, the one used last at the end
        self._work: tuple[Image, Slices[Array]] | None = None

    def encode(self, running: Iterable[Sequence], patience_s: float) -> bool:
        """Encode at least one slice of the next wanted image, for `patience_s`; return whether there is one.

        Raises the tower's errors, after dropping the image.
        """
        # An image is wanted once the inputs before it are about to be evaluated.
        wanted = [
            unread.image
            for sequence in running
            if sequence.images and (unread := sequence.unread) and sequence.ready <= self._ahead
        ]
        if self._work is not None and not any(image is self._work[0] for image in wanted):
            self._give_up()  # no sequence waits for it any more
        if not wanted:
            return False
        image = wanted[0] if self._work is None else self._work[0]
        until = time.monotonic() + patience_s
        try:
            if self._work is None:
                self._work = image, self._tower.encode(image.pixels, self._slice_rows)
            while True:
                next(self._work[1])
                if time.monotonic() >= until:
                    return True
        except StopIteration as end:
            image.states = self._tower.ops.numpy(end.value)
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
        self._tower.keys.release()
        self._known.clear()

    def _give_up(self) -> None:
        if self._work is not None:
            with suppress(Exception):
                self._work[1].close()
        self._work = None

    def _trim(self, running: Iterable[Sequence]) -> None:
        """Forget the least recently used images until `kept_bytes` are left, except those not evaluated yet.

        Images that running sequences have evaluated may go too; they are encoded again if needed again.
        """
        ranges = [(each, sequence.evaluated) for sequence in running for each in sequence.images]
        needed = {id(each.image) for each, evaluated in ranges if each.end > evaluated}
        with self._lock:
            every = {id(each.image): each.image for each, _ in ranges}
            every |= {id(image): image for image in self._known.values()}
            size = sum(map(_size, every.values()))
            for key, image in every.items():
                if size <= self._kept_bytes:
                    return
                if key not in needed:
                    size -= _size(image)
                    self._known.pop(image.digest, None)
                    image.states = None


class Images(Encoding):
    """Images decoded and encoded for one vision tower. Files may be read on any thread."""

    def __init__(self, tower: VisionTower, slice_rows: int, *, kept_bytes: int = IMAGE_STATE_BYTES) -> None:
        super().__init__(tower, slice_rows, kept_bytes=kept_bytes)
        self.tower = tower
        self.preparer = Preparer(tower)

    def read(self, files: Iterable[bytes], limits: ImageLimits | None = None) -> list[Image]:
        """Return the images in the files of one request.

        Raises `ImageError` with the number of the faulty image, and `PreparerError`.
        """
        reading = ReadingImages(self, list(files), limits)
        while not reading.done:
            reading.advance()
        return reading.images

    def find(self, digest: int) -> Image | None:
        """Return the image with this digest of its file, if it is known."""
        with self._lock:
            if digest in self._known:
                self._known.move_to_end(digest)
            return self._known.get(digest)

    def add(self, digest: int, prepared: Prepared) -> Image:
        """Return the image of `prepared`, which is known from now on.

        The least recently used images are forgotten until the known ones take at most `kept_bytes`; requests
        that use them keep them alive.
        """
        with self._lock:
            image = self._known.setdefault(digest, Image(digest, prepared, prepared.rows))
            self._known.move_to_end(digest)
            size = sum(map(_size, self._known.values()))
            while size > self._kept_bytes and len(self._known) > 1:
                size -= _size(self._known.popitem(last=False)[1])
            return image

    def close(self) -> None:
        self.preparer.close()
        super().close()


def _size(image: Image) -> int:
    encoded = 0 if image.states is None else image.states.nbytes
    return int(image.pixels.nbytes) + encoded


def _digest(data: bytes) -> int:
    """Return a 64-bit hash of a file's content, never 0."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") or 1
