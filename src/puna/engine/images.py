"""Images of requests: decoded once, and encoded in slices between steps, just before they are evaluated.

An image is identified by the hash of its bytes, so that one sent again, for instance in the next turn of a
conversation, is neither decoded nor encoded twice; if the prefix cache has it, it is not encoded at all.
Images are kept on the host up to a limit, and the least recently used are dropped first.

A recording is treated alike. Each of its windows is an image of the input stream.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from puna.audio.decoder.client import Decoding
from puna.audio.formats import is_audio
from puna.audio.limits import AudioLimits, audio_limits
from puna.audio.recording import Recording
from puna.batch import Image, Input, WindowedRecording
from puna.errors import AudioError, ImageError
from puna.model.memory import IMAGE_STATE_BYTES
from puna.vision.limits import ImageLimits, image_limits
from puna.vision.preparer.client import Preparer

if TYPE_CHECKING:
    from puna.audio.tower import AudioTower
    from puna.engine.sequence import Sequence as Running
    from puna.ops import Array, Backend
    from puna.vision.layers.attention import PatchKeys, Slices
    from puna.vision.tower import Prepared, VisionTower

log = logging.getLogger("puna.engine")

AnyImage = TypeVar("AnyImage", Image, WindowedRecording)


class ReadingImages:
    """The files of a request, decoded one at a time into `images`; known ones are never decoded.

    Files of recordings are told from those of images by how they begin.
    """

    def __init__(
        self,
        known: Images,
        files: list[bytes],
        limits: ImageLimits | None = None,
        audio: AudioLimits | None = None,
    ) -> None:
        """Raise `ImageError` and `AudioError` for more files than a request may have."""
        self.images: list[Image | WindowedRecording] = []
        self._known = known
        self._files = files
        self._limits = limits or image_limits()
        self._audio_limits = audio or audio_limits()
        self._pixels = 0
        self._seconds = 0.0
        self._heard_s = 0.0
        self._heard = [is_audio(data) for data in files]
        recordings = sum(self._heard)
        self._limits.check_count(len(files) - recordings)
        self._audio_limits.check_count(recordings)
        self._digests = [_digest(data) for data in files]
        self._take_known()

    @property
    def done(self) -> bool:
        return len(self.images) == len(self._files)

    def advance(self) -> None:
        """Decode one file, and add known images before and after it.

        Raises `ImageError` and `AudioError` with the number of the faulty file, `PreparerError` and
        `ReaderError`.
        """
        self._take_known()  # another request may have decoded them meanwhile
        if not self.done:
            if self._heard[len(self.images)]:
                self._decode_recording()
            else:
                self._decode_image()
            self._take_known()

    def _take_known(self) -> None:
        for digest in self._digests[len(self.images) :]:
            if (image := self._known.find(digest)) is None:
                return
            self._add(image)

    def _add(self, image: Image | WindowedRecording) -> None:
        """Take the next image. Raises `AudioError` if the recordings are too long together."""
        self.images.append(image)
        if isinstance(image, WindowedRecording):
            self._heard_s += image.seconds
            minutes = self._audio_limits.minutes
            if self._heard_s > 60 * minutes:
                raise AudioError(
                    f"the recordings are longer than {minutes} minute{'s' * (minutes != 1)} together: send "
                    "fewer, or shorter ones (PUNA_MAX_AUDIO_MINUTES)"
                )

    def _name(self, kind: str) -> str:
        """Return how errors call the next file: by its number among those of its kind, if there are more."""
        place = len(self.images)
        heard = self._heard[place]
        number, count = self._heard[: place + 1].count(heard), self._heard.count(heard)
        return f"the {kind}" if count == 1 else f"{kind} {number} of {count}"

    def _decode_recording(self) -> None:
        place = len(self.images)
        recording = self._known.decode(self._files[place], self._name("recording"), self._audio_limits)
        self._add(self._known.add_recording(self._digests[place], recording))

    def _decode_image(self) -> None:
        place, count, limits = len(self.images), self._heard.count(False), self._limits
        number, name = self._heard[:place].count(False), self._name("image")
        seconds = limits.seconds_together - self._seconds
        assert self._known.preparer is not None
        found = self._known.preparer.prepare(self._files[place], name, limits, seconds)
        self._pixels += found.decoded_pixels
        self._seconds += found.seconds
        if self._pixels > limits.pixels_together:
            most = limits.pixels_together
            raise ImageError(f"the images have more than {most} pixels together: send them smaller")
        self._add(self._known.add(self._digests[place], found.prepared))
        if self._seconds >= limits.seconds_together and not self.done:
            raise ImageError(
                f"the request's images take too long: after {limits.seconds_together:g} s of processor time "
                f"{number + 1} of {count} were decoded; send fewer, or smaller ones"
            )


class Tower(Protocol):
    """The part of a vision or audio tower that encodes images, or windows of recordings."""

    ops: Backend
    keys: PatchKeys

    @property
    def largest_group(self) -> int:
        """Upper bound of an image's inputs that must share a batch."""

    def encode(self, read: Any, slice_rows: int, /) -> Slices[Array]:
        """Return the states of what it reads: float32 [rows, width]."""


class Encoding:
    """Images, each encoded by one of `towers`: that for its kind.

    Its methods are for the stepping thread.
    """

    def __init__(
        self, towers: Sequence[Tower], slice_rows: int, *, kept_bytes: int = IMAGE_STATE_BYTES
    ) -> None:
        self._towers = towers
        self.encoded = 0  # images so far
        self.failed: Image | None = None  # the last one that could not be encoded
        self._slice_rows = slice_rows
        # Inputs; text beside an image may be in its batch.
        self._ahead = slice_rows + max(tower.largest_group for tower in towers)
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        #: By digest, the one used last at the end.
        self._known: OrderedDict[int, Image | WindowedRecording] = OrderedDict()
        self._work: tuple[Image, Slices[Array]] | None = None

    def encode(self, running: Iterable[Running], patience_s: float) -> bool:
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
                self._work = image, self.tower_of(image).encode(image.pixels, self._slice_rows)
            while True:
                next(self._work[1])
                if time.monotonic() >= until:
                    return True
        except StopIteration as end:
            image.states = self.tower_of(image).ops.numpy(end.value)
            self._work = None
            self.encoded += 1
            self._trim(running)
        except BaseException:
            self.failed = image
            self._give_up()
            raise
        return True

    def tower_of(self, image: Image) -> Tower:
        """Return the tower that encodes an image."""
        return self._towers[0]

    def close(self) -> None:
        self._give_up()
        for tower in self._towers:
            tower.keys.release()
        self._known.clear()

    def _give_up(self) -> None:
        if self._work is not None:
            with suppress(Exception):
                self._work[1].close()
        self._work = None

    def _trim(self, running: Iterable[Running]) -> None:
        """Forget the least recently used images until `kept_bytes` are left, except those not evaluated yet.

        Images that running sequences have evaluated may go too; they are encoded again if needed again.
        """
        ranges = [(each, sequence.evaluated) for sequence in running for each in sequence.images]
        needed = {id(each.image) for each, evaluated in ranges if each.end > evaluated}
        with self._lock:
            # Each image with the file that it is of, if that is known.
            images: dict[int, tuple[Image, Image | WindowedRecording | None]]
            images = {id(each.image): (each.image, None) for each, _ in ranges}
            for file in self._known.values():
                images |= {id(image): (image, file) for image in _images_of(file)}
            size = sum(_size(image) for image, _ in images.values())
            for key, (image, of) in images.items():
                if size <= self._kept_bytes:
                    return
                if key in needed:
                    continue
                if isinstance(of, WindowedRecording):
                    # The samples of a recording are shared by its windows, and small beside their states.
                    size -= _states_size(image)
                else:
                    size -= _size(image)
                    self._known.pop(image.digest, None)
                image.states = None
            for digest, entry in list(self._known.items()):
                if size <= self._kept_bytes:
                    return
                if needed.isdisjoint(map(id, _images_of(entry))):
                    size -= sum(map(_size, _images_of(entry)))
                    del self._known[digest]


class Images(Encoding):
    """Images and recordings, decoded and encoded for the towers of one model.

    Files may be read on any thread.
    """

    def __init__(
        self,
        tower: VisionTower | None,
        slice_rows: int,
        *,
        audio_tower: AudioTower | None = None,
        kept_bytes: int = IMAGE_STATE_BYTES,
    ) -> None:
        """Take the model's vision tower and its audio tower; there is one of them at least."""
        towers: list[Tower] = [each for each in (tower, audio_tower) if each is not None]
        super().__init__(towers, slice_rows, kept_bytes=kept_bytes)
        self.tower = tower
        self.audio_tower = audio_tower
        self.preparer = None if tower is None else Preparer(tower)
        self._decoding: Decoding | None = None

    def read(
        self, files: Iterable[bytes], limits: ImageLimits | None = None, audio: AudioLimits | None = None
    ) -> list[Image | WindowedRecording]:
        """Return the images and recordings in the files of one request.

        Raises as `ReadingImages`.
        """
        reading = ReadingImages(self, list(files), limits, audio)
        while not reading.done:
            reading.advance()
        return reading.images

    def decode(self, data: bytes, name: str, limits: AudioLimits) -> Recording:
        """Return the recording in an audio file. Raises `AudioError` and `ReaderError`."""
        decoding = self._decoding = Decoding(data, name, limits)
        try:
            return Recording.of_data(decoding.samples())
        finally:
            self._decoding = None

    def stop(self) -> None:
        """Abort the decoding of the current file, from any thread; it fails."""
        if (decoding := self._decoding) is not None:
            decoding.stop()
        elif self.preparer is not None:
            self.preparer.stop()

    def place(self, image: Image | WindowedRecording) -> list[Input]:
        """Return the prompt inputs of an image or a recording: its rows, and the tokens around them."""
        if isinstance(image, WindowedRecording):
            assert self.audio_tower is not None
            return self.audio_tower.place(image.windows)
        assert self.tower is not None
        return self.tower.place(image)

    def tower_of(self, image: Image) -> Tower:
        tower = self.audio_tower if image.heard else self.tower
        assert tower is not None
        return tower

    def find(self, digest: int) -> Image | WindowedRecording | None:
        """Return the image or recording with this digest of its file, if it is known."""
        with self._lock:
            if digest in self._known:
                self._known.move_to_end(digest)
            return self._known.get(digest)

    def add(self, digest: int, prepared: Prepared) -> Image:
        """Return the image of `prepared`, which is known from now on.

        The least recently used images are forgotten until the known ones take at most `kept_bytes`; requests
        that use them keep them alive.
        """
        return self._remember(digest, Image(digest, prepared, prepared.rows))

    def add_recording(self, digest: int, recording: Recording) -> WindowedRecording:
        """Return a recording, which is known from now on, as `add` does."""
        assert self.audio_tower is not None
        windows = (
            Image(_digest(f"{digest} {number}".encode()), window, window.rows, heard=True)
            for number, window in enumerate(self.audio_tower.prepare(recording))
        )
        return self._remember(digest, WindowedRecording(digest, tuple(windows), recording.seconds))

    def _remember(self, digest: int, found: AnyImage) -> AnyImage:
        with self._lock:
            image = cast("AnyImage", self._known.setdefault(digest, found))
            self._known.move_to_end(digest)
            size = sum(_size(each) for entry in self._known.values() for each in _images_of(entry))
            while size > self._kept_bytes and len(self._known) > 1:
                size -= sum(map(_size, _images_of(self._known.popitem(last=False)[1])))
            return image

    def close(self) -> None:
        if self.preparer is not None:
            self.preparer.close()
        if (decoding := self._decoding) is not None:
            decoding.stop()
        super().close()


def _images_of(entry: Image | WindowedRecording) -> tuple[Image, ...]:
    return entry.windows if isinstance(entry, WindowedRecording) else (entry,)


def _size(image: Image) -> int:
    return int(image.pixels.nbytes) + _states_size(image)


def _states_size(image: Image) -> int:
    return 0 if image.states is None else image.states.nbytes


def _digest(data: bytes) -> int:
    """Return a 64-bit hash of a file's content, never 0."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") or 1
