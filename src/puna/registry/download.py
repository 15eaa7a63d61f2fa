"""Downloads of blobs: in parallel parts, resumed after interruptions, and checked.

A partial blob has Ollama's files beside it, so that either program can resume it.
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
from puna.system.processes import read_in_order

MAX_PARTS = 16
MIN_PART = 100_000_000  # bytes
MAX_PART = 1_000_000_000
#: Bytes of a part after which its progress is saved.
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
    """The files of one blob's download, locked against other downloads in any process."""

    def __init__(self, blob: Path, size: int) -> None:
        """`blob` is the path of the finished file. Call `lock` before anything else."""
        self.blob = blob
        self.size = size
        self.path = blob.with_name(f"{blob.name}-partial")
        self.parts: list[BlobRange] = []
        self._descriptor = -1
        self._noted: dict[int, int] = {}

    def lock(self) -> bool:
        """Try to take the lock; return False if another download has it. Raises StoreError."""
        with storage_errors("write into", self.path.parent):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have finished and moved the file before we got the lock.
            held = os.fstat(descriptor).st_ino == os.stat(self.path).st_ino
        except (BlockingIOError, FileNotFoundError):
            held = False
        if not held:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def plan(self) -> None:
        """Resume the saved parts, or divide the blob anew. Raises StoreError."""
        parts = self.saved_parts()
        if not _covers(parts, self.size) or os.fstat(self._descriptor).st_size != self.size:
            self._forget()
            parts = divided(self.size)
        with storage_errors("write", self.path):
            os.ftruncate(self._descriptor, self.size)
        self.parts = parts
        for part in parts:
            self._note(part)

    def saved_parts(self) -> list[BlobRange]:
        """Read the saved parts, ignoring unreadable ones."""
        parts = []
        for path in self._sidecars():
            with contextlib.suppress(OSError, msgspec.DecodeError):
                parts.append(msgspec.json.decode(read_whole(path), type=BlobRange))
        return sorted(parts, key=lambda part: part.offset)

    @property
    def saved_bytes(self) -> int:
        """The number of bytes downloaded, according to the saved parts."""
        return sum(part.completed for part in self.saved_parts())

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
        """Make the checked file the blob. Raises StoreError."""
        with storage_errors("write", self.path):
            os.fsync(self._descriptor)
            move_into_place(self.path, self.blob)
        for path in self._sidecars():
            path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the file and its parts, because the content was wrong."""
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
            with contextlib.suppress(Exception):  # saved progress is not essential
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
    """Divide a blob of `size` bytes into parts."""
    part_size = min(max(-(-size // MAX_PARTS), MIN_PART), MAX_PART)
    starts = range(0, size, part_size)
    return [BlobRange(n, start, min(part_size, size - start)) for n, start in enumerate(starts)]


def _covers(parts: list[BlobRange], size: int) -> bool:
    """Whether the parts follow one another, from the first byte to the last."""
    end = 0
    for n, part in enumerate(sorted(parts, key=lambda part: part.offset)):
        if part.offset != end or part.size <= 0 or not 0 <= part.completed <= part.size or part.n != n:
            return False
        end += part.size
    return end == size


#: Called with (start, end) to request these bytes of a blob, `end` excluded.
Fetch = Callable[[int, int], AbstractContextManager[httpx.Response]]

#: Parts fetched in parallel.
_AT_ONCE = 8
_CHUNK = 1 << 20
#: Status codes worth another try.
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)


@dataclass(frozen=True)
class Patience:
    """The limits of retries without progress: their number, and the first wait, which then doubles."""

    tries: int = 6
    first_wait_s: float = 1.0
    report_s: float = 0.1  # between two progress reports


class Download:
    """Download of a blob's missing parts into its partial file."""

    def __init__(
        self, partial: Partial, fetch: Fetch, cancelled: threading.Event, patience: Patience
    ) -> None:
        self._partial = partial
        self._fetch = fetch
        self._cancelled = cancelled
        self._patience = patience

    @property
    def completed(self) -> int:
        """The number of bytes downloaded."""
        return sum(part.completed for part in self._partial.parts)

    def run(self) -> Iterator[int]:
        """Fetch all parts, regularly yielding the number of bytes downloaded.

        Raises RegistryError, StoreError, RefusedError and TransferCancelledError. Downloaded bytes are kept
        for the next time.
        """
        missing = [part for part in self._partial.parts if not part.done]
        failed = threading.Event()  # stops the other parts
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
                self._request(part, failed)
                continue
            except (httpx.TransportError, httpx.StreamError) as error:
                problem = what_failed(error)
            except RefusedError as refusal:
                if refusal.status not in TRANSIENT:
                    raise
                problem = str(refusal)
            # A connection that makes some progress is slow, but works.
            tries = 0 if part.completed >= before + _CHUNK else tries + 1
            if tries >= self._patience.tries:
                raise RegistryError(f"max retries exceeded: {problem}")
            wait_s = self._patience.first_wait_s * 2 ** max(tries - 1, 0)
            if self._cancelled.wait(wait_s) or failed.is_set():
                raise TransferCancelledError

    def _request(self, part: BlobRange, failed: threading.Event) -> None:
        """Make one request for the rest of a part."""
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
        """Return the number of bytes that precede the requested ones. Raises RegistryError."""
        size = self._partial.size
        if answer.status_code == 206:
            given = _RANGE.fullmatch(answer.headers.get("content-range", ""))
            if given is None or int(given[1]) != start or given[3] not in ("*", str(size)):
                raise RegistryError(
                    f"{answer.url.host} sent {answer.headers.get('content-range')!r}, not the bytes from "
                    f"{start} of {size}"
                )
            return 0
        length = answer.headers.get(
            "content-length"
        )  # of the whole file, since the server does not support ranges
        if length is not None and length != str(size):
            raise RegistryError(f"{answer.url.host} has a file of {length} bytes that should have {size}")
        return start


def check(partial: Partial, digest: str, cancelled: threading.Event) -> None:
    """Compare the finished file with its digest, and remove it if it differs.

    Raises RegistryError and TransferCancelledError.
    """
    hashed = hashlib.sha256()
    with storage_errors("read", partial.path), partial.path.open("rb") as file:
        read_in_order(file.fileno())
        while data := file.read(8 * _CHUNK):
            if cancelled.is_set():
                raise TransferCancelledError
            hashed.update(data)
    if (found := f"sha256:{hashed.hexdigest()}") != digest:
        partial.discard()
        raise RegistryError(f"digest mismatch, file must be downloaded again: want {digest}, got {found}")


class BlobPuller:
    """Downloader of blobs into a store."""

    def __init__(self, store: Store, report: Report, cancelled: threading.Event, patience: Patience) -> None:
        self.store = store
        self.report = report
        self.cancelled = cancelled
        self.patience = patience

    def fetch(
        self, layers: Sequence[ManifestLayer], source: Callable[[ManifestLayer], Fetch], extra_bytes: int = 0
    ) -> None:
        """Fetch all `layers`, checking each before it appears in the store.

        They are fetched one at a time, so that pulls that share layers cannot deadlock. `extra_bytes` of disk
        space are needed in addition.
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
        """Return the locked file to download into; None once the store has the layer."""
        while not (self.store.blobs.touch(layer.digest) and self._has(layer)):
            file = Partial(self.store.blob_path(layer.digest), layer.size)
            if file.lock():
                held.enter_context(file)
                # The layer may have arrived before the lock was taken.
                if not self._has(layer):
                    return file
                file.discard()
                continue
            self._tell(layer, min(file.saved_bytes, layer.size))
            if self.cancelled.wait(2 * self.patience.report_s):
                raise TransferCancelledError
        return None

    def _has(self, layer: ManifestLayer) -> bool:
        """Whether the store has the layer, and it shows no damage."""
        path = self.store.blob_path(layer.digest)
        with storage_errors("read", path):
            if not path.is_file() or path.stat().st_size != layer.size:
                return False
        return self.store.blob_seems_whole(layer.digest)

    def _check_layers(self, layers: Sequence[ManifestLayer], extra_bytes: int) -> None:
        """Raise StoreError if the missing layers do not fit on the disk."""
        missing = {layer.digest: layer for layer in layers if not self._has(layer)}.values()
        present = sum(
            Partial(self.store.blob_path(layer.digest), layer.size).saved_bytes for layer in missing
        )
        self.check_space(sum(layer.size for layer in missing) - present + extra_bytes)

    def check_space(self, needed: int) -> None:
        """Raise StoreError unless `needed` more bytes fit."""
        with storage_errors("read", self.store.root):
            self.store.blobs.folder.mkdir(parents=True, exist_ok=True)
            free = shutil.disk_usage(self.store.blobs.folder).free
        if needed > free:
            raise StoreError(
                f"the download needs {needed / 1e9:.1f} GB, but {self.store.root} has room for "
                f"{free / 1e9:.1f} GB: free some space, or point PUNA_MODELS at another disk"
            )
