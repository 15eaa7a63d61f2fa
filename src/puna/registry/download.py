"""Downloading blobs: in parts, in parallel, again where it broke off, and checked.

A partial blob has Ollama's files beside it, so that either program can go on with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx
import msgspec

from puna.errors import RegistryError, StoreError
from puna.registry.network import TransferCancelledError, what_failed
from puna.registry.remote import RefusedError
from puna.registry.report import Report, TransferProgress
from puna.store import Store
from puna.store.blobs import move_into_place, read_whole, storage_errors
from puna.store.manifest import ManifestLayer

MAX_PARTS = 16
MIN_PART = 100_000_000  # bytes
MAX_PART = 1_000_000_000
#: Bytes of a part after which it is noted how far it is.
_NOTE_EVERY = 8 << 20


class BlobRange(msgspec.Struct, rename="pascal"):
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
        self.parts: list[BlobRange] = []
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

    def noted(self) -> list[BlobRange]:
        """The parts as their files tell; without those that cannot be read."""
        parts = []
        for path in self._sidecars():
            with contextlib.suppress(OSError, msgspec.DecodeError):
                parts.append(msgspec.json.decode(read_whole(path), type=BlobRange))
        return sorted(parts, key=lambda part: part.offset)

    @property
    def noted_bytes(self) -> int:
        """How many bytes there are, as far as it was noted."""
        return sum(part.completed for part in self.noted())

    def write(self, part: BlobRange, data: bytes) -> None:
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

    def _note(self, part: BlobRange) -> None:
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


def divided(size: int) -> list[BlobRange]:
    """The parts of a blob of `size` bytes."""
    each = min(max(-(-size // MAX_PARTS), MIN_PART), MAX_PART)
    starts = range(0, size, each)
    return [BlobRange(n, start, min(each, size - start)) for n, start in enumerate(starts)]


def _covers(parts: list[BlobRange], size: int) -> bool:
    """Whether the parts are one behind the other, from the first byte to the last."""
    end = 0
    for n, part in enumerate(sorted(parts, key=lambda part: part.offset)):
        if part.offset != end or part.size <= 0 or not 0 <= part.completed <= part.size or part.n != n:
            return False
        end += part.size
    return end == size


#: Bytes from one to before another of a blob, as a server sends them.
Fetch = Callable[[int, int], AbstractContextManager[httpx.Response]]

#: Parts that are fetched at the same time.
_AT_ONCE = 8
_CHUNK = 1 << 20
#: Answers that another try may change.
PASSING = {408, 425, 429, 500, 502, 503, 504}
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)


@dataclass(frozen=True)
class Patience:
    """How often a part is tried without anything coming, and how long after the first failure to wait.

    Each further wait is twice as long.
    """

    tries: int = 6
    first_wait_s: float = 1.0
    report_s: float = 0.1  # between two reports of how far a download is


class Download:
    """Fetches what is missing of a blob into its partial file."""

    def __init__(
        self, partial: Partial, fetch: Fetch, cancelled: threading.Event, patience: Patience
    ) -> None:
        self._partial = partial
        self._fetch = fetch
        self._cancelled = cancelled
        self._patience = patience

    @property
    def completed(self) -> int:
        """Bytes that are there."""
        return sum(part.completed for part in self._partial.parts)

    def run(self) -> Iterator[int]:
        """Fetch all parts, yielding every now and then how many bytes are there.

        Raises RegistryError, StoreError, RefusedError and TransferCancelledError. What has come stays for the
        next time.
        """
        missing = [part for part in self._partial.parts if not part.done]
        failed = threading.Event()  # ends the other parts
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="download") as pool:
            waiting: set[Future[None]] = {pool.submit(self._part, part, failed) for part in missing}
            try:
                while waiting:
                    done, waiting = wait(waiting, self._patience.report_s, FIRST_EXCEPTION)
                    for future in done:
                        future.result()
                    yield self.completed
            finally:
                if waiting:
                    failed.set()
                    pool.shutdown(wait=True, cancel_futures=True)

    def _part(self, part: BlobRange, failed: threading.Event) -> None:
        tries = 0
        while not part.done:
            before = part.completed
            try:
                self._some(part, failed)
                continue
            except (httpx.TransportError, httpx.StreamError) as error:
                problem = what_failed(error)
            except RefusedError as refusal:
                if refusal.status not in PASSING:
                    raise
                problem = str(refusal)
            # A connection that brings something now and then is slow, but works.
            tries = 0 if part.completed >= before + _CHUNK else tries + 1
            if tries >= self._patience.tries:
                raise RegistryError(f"max retries exceeded: {problem}")
            wait_s = self._patience.first_wait_s * 2 ** max(tries - 1, 0)
            if self._cancelled.wait(wait_s) or failed.is_set():
                raise TransferCancelledError

    def _some(self, part: BlobRange, failed: threading.Event) -> None:
        """What one request brings of a part."""
        start, end = part.offset + part.completed, part.offset + part.size
        with self._fetch(start, end) as answer:
            skip = self._skipped(answer, start)
            for chunk in answer.iter_raw():
                data = chunk[skip:]
                skip -= len(chunk) - len(data)
                self._partial.write(part, data[: part.size - part.completed])
                if part.done:
                    return
                if self._cancelled.is_set() or failed.is_set():
                    raise TransferCancelledError
        if not part.done:
            raise httpx.RemoteProtocolError("the connection ended early")

    def _skipped(self, answer: httpx.Response, start: int) -> int:
        """How many of the answer's bytes come before the wanted ones. Raises RegistryError."""
        size = self._partial.size
        if answer.status_code == 206:
            given = _RANGE.fullmatch(answer.headers.get("content-range", ""))
            if given is None or int(given[1]) != start or given[3] not in ("*", str(size)):
                raise RegistryError(
                    f"{answer.url.host} sends {answer.headers.get('content-range')!r}, not the bytes from "
                    f"{start} of {size}"
                )
            return 0
        length = answer.headers.get("content-length")  # of the whole: this server knows no ranges
        if length is not None and length != str(size):
            raise RegistryError(f"{answer.url.host} has {length} bytes of a file that should have {size}")
        return start


def check(partial: Partial, digest: str, cancelled: threading.Event) -> None:
    """Compare the finished file with its digest; one that differs is removed.

    Raises RegistryError and TransferCancelledError.
    """
    hashed = hashlib.sha256()
    with storage_errors("read", partial.path), partial.path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while data := file.read(8 * _CHUNK):
            if cancelled.is_set():
                raise TransferCancelledError
            hashed.update(data)
    if (found := f"sha256:{hashed.hexdigest()}") != digest:
        partial.discard()
        raise RegistryError(f"digest mismatch, file must be downloaded again: want {digest}, got {found}")


class BlobPuller:
    """Fetches blobs into a store."""

    def __init__(self, store: Store, report: Report, cancelled: threading.Event, patience: Patience) -> None:
        self.store = store
        self.report = report
        self.cancelled = cancelled
        self.patience = patience

    def fetch(
        self, layers: Sequence[ManifestLayer], source: Callable[[ManifestLayer], Fetch], extra_bytes: int = 0
    ) -> None:
        """All of `layers`, each checked before it appears in the store.

        One at a time: two pulls that share some never wait for each other in a circle. `extra_bytes` are
        needed beside them.
        """
        self._check_layers(layers, extra_bytes)
        for layer in {layer.digest: layer for layer in layers}.values():
            with ExitStack() as held:
                file = self._claimed(layer, held)
                if file is None:
                    self._tell(layer, layer.size)
                    continue
                file.plan()
                download = Download(file, source(layer), self.cancelled, self.patience)
                self._tell(layer, download.completed)
                for completed in download.run():
                    self._tell(layer, completed)
                self.report(TransferProgress("verifying sha256 digest"))
                check(file, layer.digest, self.cancelled)
                file.finish()

    def _tell(self, layer: ManifestLayer, completed: int) -> None:
        self.report(TransferProgress.of_blob("pulling", layer.digest, layer.size, completed))

    def _claimed(self, layer: ManifestLayer, held: ExitStack) -> Partial | None:
        """The layer's file to download into; None once the store has the layer, if another pull brings it."""
        while not (self.store.blobs.touch(layer.digest) and self._has(layer)):
            file = Partial(self.store.blob_path(layer.digest), layer.size)
            if file.lock():
                held.enter_context(file)
                # It may have come between looking and locking.
                if not self._has(layer):
                    return file
                file.discard()
                continue
            self._tell(layer, min(file.noted_bytes, layer.size))
            if self.cancelled.wait(2 * self.patience.report_s):
                raise TransferCancelledError
        return None

    def _has(self, layer: ManifestLayer) -> bool:
        """Whether the store has the layer, undamaged as far as can be seen at once."""
        path = self.store.blob_path(layer.digest)
        with storage_errors("look at", path):
            if not path.is_file() or path.stat().st_size != layer.size:
                return False
        return self.store.blob_seems_whole(layer.digest)

    def _check_layers(self, layers: Sequence[ManifestLayer], extra_bytes: int) -> None:
        """Raise StoreError if what is missing cannot fit."""
        missing = {layer.digest: layer for layer in layers if not self._has(layer)}.values()
        there = sum(Partial(self.store.blob_path(layer.digest), layer.size).noted_bytes for layer in missing)
        self.check_space(sum(layer.size for layer in missing) - there + extra_bytes)

    def check_space(self, needed: int) -> None:
        """Raise StoreError unless `needed` more bytes fit."""
        with storage_errors("look at", self.store.root):
            self.store.blobs.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.store.blobs.folder).free
        if needed > free:
            raise StoreError(
                f"{needed / 1e9:.1f} GB are to be downloaded, but {self.store.root} has room for "
                f"{free / 1e9:.1f} GB: free some space, or point PUNA_MODELS at another disk"
            )
