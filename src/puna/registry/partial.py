"""A blob that is being downloaded: Ollama's files for it, so that either program goes on where one stopped.

Beside `sha256-<digest>-partial`, which has the blob's size and holes where nothing has come yet, lies a file
`sha256-<digest>-partial-<N>` for each of its parts, which says how much of that part is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path
from types import TracebackType

import msgspec

from puna.store.files import move_into_place, read_whole, storage_errors

MOST_PARTS = 16
LEAST_PART = 100_000_000  # bytes
MOST_PART = 1_000_000_000
#: Bytes of a part after which it is noted how far it is.
_NOTE_EVERY = 8 << 20


class Part(msgspec.Struct, rename="pascal"):
    """A range of a blob, in bytes."""

    n: int
    offset: int
    size: int
    completed: int = 0

    @property
    def done(self) -> bool:
        return self.completed >= self.size


class Partial:
    """The files of one blob's download, locked against other downloads, also of other processes."""

    def __init__(self, blob: Path, size: int) -> None:
        """`blob` is the file that it becomes. Call `lock` before anything else."""
        self.blob = blob
        self.size = size
        self.path = blob.with_name(f"{blob.name}-partial")
        self.parts: list[Part] = []
        self._descriptor = -1
        self._noted: dict[int, int] = {}

    def lock(self) -> bool:
        """Try to be the one who downloads; False if another one is at it. Raises StoreError."""
        with storage_errors("write into", self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever had the lock may have finished, and moved the file away, before we got it.
            held = os.fstat(descriptor).st_ino == os.stat(self.path).st_ino
        except (BlockingIOError, FileNotFoundError):
            held = False
        if not held:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def plan(self) -> None:
        """Find out what is there, or divide the blob anew. Raises StoreError."""
        parts = self.noted()
        if not _covers(parts, self.size) or os.fstat(self._descriptor).st_size != self.size:
            self._forget()
            parts = divided(self.size)
        with storage_errors("write", self.path):
            os.ftruncate(self._descriptor, self.size)
        self.parts = parts
        for part in parts:
            self._note(part)

    def noted(self) -> list[Part]:
        """The parts as their files tell; without those that cannot be read."""
        parts = []
        for path in self._sidecars():
            with contextlib.suppress(OSError, msgspec.DecodeError):
                parts.append(msgspec.json.decode(read_whole(path), type=Part))
        return sorted(parts, key=lambda part: part.offset)

    @property
    def noted_bytes(self) -> int:
        """How many bytes there are, as far as it was noted."""
        return sum(part.completed for part in self.noted())

    def write(self, part: Part, data: bytes) -> None:
        """Add `data` to a part. Raises StoreError."""
        with storage_errors("write", self.path):
            view, at = memoryview(data), part.offset + part.completed
            while view:
                written = os.pwrite(self._descriptor, view, at)
                view, at = view[written:], at + written
        part.completed += len(data)
        if part.done or part.completed - self._noted.get(part.n, 0) >= _NOTE_EVERY:
            self._note(part)

    def finish(self) -> None:
        """The file becomes the blob; it was checked. Raises StoreError."""
        with storage_errors("write", self.path):
            os.fsync(self._descriptor)
            move_into_place(self.path, self.blob)
        for path in self._sidecars():
            path.unlink(missing_ok=True)

    def discard(self) -> None:
        """What came was wrong: remove it all."""
        self._forget()
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Partial:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor < 0:
            return
        if self.path.exists():
            with contextlib.suppress(Exception):  # what is noted only saves work
                for part in self.parts:
                    self._note(part)
        os.close(self._descriptor)
        self._descriptor = -1

    def _note(self, part: Part) -> None:
        target = self.path.with_name(f"{self.path.name}-{part.n}")
        temporary = target.with_name(f"{target.name}.tmp")
        with storage_errors("write", target):
            temporary.write_bytes(msgspec.json.encode(part))
            temporary.replace(target)
        self._noted[part.n] = part.completed

    def _forget(self) -> None:
        for path in self._sidecars():
            path.unlink(missing_ok=True)
        with storage_errors("write", self.path):
            os.ftruncate(self._descriptor, 0)

    def _sidecars(self) -> list[Path]:
        name = re.compile(re.escape(self.path.name) + r"-\d+")
        return [path for path in self.path.parent.glob(f"{self.path.name}-*") if name.fullmatch(path.name)]


def divided(size: int) -> list[Part]:
    """The parts of a blob of `size` bytes."""
    each = min(max(-(-size // MOST_PARTS), LEAST_PART), MOST_PART)
    starts = range(0, size, each)
    return [Part(n, start, min(each, size - start)) for n, start in enumerate(starts)]


def _covers(parts: list[Part], size: int) -> bool:
    """Whether the parts are one behind the other, from the first byte to the last."""
    end = 0
    for n, part in enumerate(sorted(parts, key=lambda part: part.offset)):
        if part.offset != end or part.size <= 0 or not 0 <= part.completed <= part.size or part.n != n:
            return False
        end += part.size
    return end == size
