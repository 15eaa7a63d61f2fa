"""Blobs: files named after the SHA-256 of their content, and atomic writes.

No crash, full disk or second process ever leaves a partial file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from puna.errors import GGUFError, InvalidNameError, RequestError, StoreError
from puna.store.facts import MAGIC, facts_of
from puna.system.locks import NamedLocks, is_locked

_LOCKS: Final = ".puna.held"


class BlobHold:
    """Blobs that no process deletes until this is closed. Read-only folders need no lock."""

    def __init__(self, folder: Path) -> None:
        """`folder` is that of the blobs; their digests are given as `normalize_digest` returns them."""
        self._before: dict[str, tuple[Path, int, int]] = {}
        self._locks: NamedLocks | None = None
        with contextlib.suppress(OSError):
            self._locks = NamedLocks(folder.parent / _LOCKS)

    def keep(self, digest: str) -> None:
        """Hold a blob, whether or not it exists yet."""
        if self._locks is not None:
            with contextlib.suppress(OSError):  # a file system without locks
                self._locks.hold(digest[-64:])

    def add(self, digest: str, path: Path) -> None:
        """Hold an existing blob. Raises OSError if there is none."""
        self.keep(digest)
        status = path.lstat()
        self._before[digest] = (path, status.st_ino, status.st_mtime_ns)

    def unclaimed(self) -> set[str]:
        """Return the digests of added blobs that no client has uploaded or requested since."""
        found = set()
        for digest, (path, inode, modified_ns) in self._before.items():
            with contextlib.suppress(OSError):
                status = path.lstat()
                if (status.st_ino, status.st_mtime_ns) == (inode, modified_ns):
                    found.add(digest)
        return found

    def close(self) -> None:
        if self._locks is not None:
            self._locks.close()
            self._locks = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_held(blob: Path) -> bool:
    """Whether the blob is held, in this process or another."""
    try:
        return is_locked(blob.parent.parent / _LOCKS, blob.name[-64:])
    except OSError:
        return False


_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, or point PUNA_MODELS at another disk",
    errno.EDQUOT: "the disk quota is used up: free some space, or point PUNA_MODELS elsewhere",
    errno.EACCES: "permission denied: check its owner, or point PUNA_MODELS at a directory of your own",
    errno.EPERM: "not permitted: check its owner, or point PUNA_MODELS at a directory of your own",
    errno.EROFS: "the file system is read-only: point PUNA_MODELS at a writable directory",
}


#: Maximum bytes of a manifest, a config or a text: those of a request.
_MAX_TEXT = 64 << 20


def read_whole(path: Path) -> bytes:
    """Read a file that is no model. Raises OSError, also for a file too long to be a text."""
    with path.open("rb") as file:
        content = file.read(_MAX_TEXT + 1)
    if len(content) > _MAX_TEXT:
        raise OSError(errno.EFBIG, f"it has more than {_MAX_TEXT >> 20} MB, too much for a text", str(path))
    return content


@contextlib.contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that says what failed, where, and what to do."""
    try:
        yield
    except OSError as error:
        reason = _ADVICE.get(error.errno or 0) or error.strerror or str(error)
        raise StoreError(f"cannot {action} {error.filename or path}: {reason}") from error


def sync_directory(folder: Path) -> None:
    """Make renames in `folder` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move_into_place(temporary: Path, target: Path) -> None:
    """Rename a finished, synced temporary file to `target`, overwriting it."""
    temporary.chmod(0o644)
    temporary.replace(target)
    sync_directory(target.parent)


def write_atomically(target: Path, data: bytes, scratch: Path) -> None:
    """Write `data` to `target`, overwriting it.

    The temporary file is created in `scratch` if that is on the same file system, so that listings of
    `target`'s directory do not show it; otherwise next to `target`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = scratch if scratch.stat().st_dev == target.parent.stat().st_dev else target.parent
    descriptor, name = tempfile.mkstemp(prefix="tmp-", dir=folder)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        move_into_place(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def exclusive(lock_file: Path) -> Iterator[None]:
    """Hold the store's write lock: one writer at a time, across threads and processes."""
    lock_file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_CHUNK_BYTES = 1 << 20
_HASHED_BYTES = 8 << 20  # at a time
_LONGEST_TEXT = 1 << 20  # bytes of blobs that are read to check them


def normalize_digest(digest: str) -> str:
    """Return `digest` as `sha256:` and 64 lower-case hex digits. Raises InvalidNameError."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise InvalidNameError(f'invalid digest format: "{digest}" is not sha256: and 64 hex digits')
    return "sha256:" + match[1].lower()


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def file_digest(path: Path, on_read: Callable[[int, int], object] = lambda done, total: None) -> str:
    """Return a file's digest, calling `on_read` with (bytes read, bytes in total). Raises OSError."""
    hashed, done = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        total = os.fstat(file.fileno()).st_size
        while data := file.read(_HASHED_BYTES):
            hashed.update(data)
            done += len(data)
            on_read(done, total)
    return "sha256:" + hashed.hexdigest()


def has_changed(path: Path) -> bool:
    """Whether the blob at `path` is a link to a file that was written or replaced after it was linked.

    A changed name or changed permissions look the same. Raises OSError.
    """
    return path.is_symlink() and path.stat().st_ctime_ns > path.lstat().st_mtime_ns


class BlobWriter:
    """Writer of one blob in pieces, which appears in the store on `commit`, complete and checked.

    A context manager: leaving it without `commit` discards the data.
    """

    def __init__(self, folder: Path, scratch: Path | None = None) -> None:
        """`scratch` holds the file until then; by default `folder` itself."""
        self._folder = folder
        self._hash = hashlib.sha256()
        self.size = 0
        with storage_errors("write into", folder):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix="tmp-", dir=scratch or folder)
        self._temporary = Path(name)
        self._file = os.fdopen(descriptor, "wb", buffering=_CHUNK_BYTES)

    def write(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self.size += len(data)
        with storage_errors("write", self._temporary):
            self._file.write(data)

    def commit(self, expected: str | None = None) -> str:
        """Check, sync and rename the file; return its digest. Raises RequestError if not `expected`."""
        digest = "sha256:" + self._hash.hexdigest()
        if expected is not None and digest != expected:
            raise RequestError(f'digest mismatch, expected "{expected}", got "{digest}"')
        with storage_errors("write", self._temporary):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            move_into_place(self._temporary, self._folder / digest.replace(":", "-"))
        return digest

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With a full disk the final flush fails again; only the first error matters.
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)


class Blobs:
    """The `blobs/` directory of a store, with unfinished files in `scratch` on the same file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder

    def path(self, digest: str) -> Path:
        """Return the blob's file, existing or not. Raises InvalidNameError for a malformed digest."""
        name = normalize_digest(digest)
        path = self.folder / name.replace(":", "-")
        legacy = self.folder / name
        return legacy if not path.exists() and legacy.exists() else path

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def touch(self, digest: str) -> bool:
        """Update the blob's time, so that it is not pruned for a while; return whether it exists."""
        path = self.path(digest)
        if not path.is_file():
            return False
        # The time cannot be changed in a store that is read-only or belongs to another user.
        with contextlib.suppress(OSError):
            if path.is_symlink():
                # The modification time says when the file was linked (see `has_changed`).
                os.utime(path, ns=(time.time_ns(), path.lstat().st_mtime_ns), follow_symlinks=False)
            else:
                os.utime(path)
        return True

    def held(self, digests: Iterable[str] = ()) -> BlobHold:
        """Keep blobs from being deleted until the hold is closed, ignoring digests without a blob."""
        held = BlobHold(self.folder)
        for given in digests:
            with contextlib.suppress(InvalidNameError, OSError):
                held.add(normalize_digest(given), self.path(given))
        return held

    def link(self, path: Path, digest: str) -> None:
        """Make the file at `path`, which must have this digest, a blob without copying it.

        Replaces an existing blob. `has_changed` detects later changes of the file. Raises StoreError.
        """
        target = self.folder / normalize_digest(digest).replace(":", "-")
        with storage_errors("write into", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix="tmp-", dir=self.scratch) as scratch:
                link = Path(scratch) / "link"
                link.symlink_to(path.resolve())
                link.replace(target)

    def unlink(self, digest: str) -> None:
        """Undo `link`; the file itself stays, and so does a blob that is no link. Raises StoreError."""
        path = self.path(digest)
        if path.is_symlink():
            with storage_errors("delete", path):
                path.unlink(missing_ok=True)

    def put(self, digest: str, chunks: Iterable[bytes]) -> bool:
        """Store a blob under `digest`. Return False, without reading `chunks`, if it already exists.

        Raises RequestError if the content has another digest, StoreError if it cannot be written.
        """
        expected = normalize_digest(digest)
        if self.touch(expected):
            return False
        with BlobWriter(self.folder, self.scratch) as writer:
            for chunk in chunks:
                writer.write(chunk)
            writer.commit(expected)
        return True

    def seems_whole(self, digest: str) -> bool:
        """Whether the blob exists, shows no damage and is no link to a changed file.

        GGUF files must open, which truncated ones do not. Files that do not open, perhaps because they are
        of a newer version, and short texts are compared with their digest. Raises StoreError.
        """
        path = self.path(digest)
        if not path.is_file() or has_changed(path):
            return False
        with storage_errors("read", path):
            with path.open("rb") as file:
                opens = file.read(len(MAGIC)) == MAGIC
            if not opens and path.stat().st_size > _LONGEST_TEXT:
                return True
            if opens:
                with contextlib.suppress(GGUFError):
                    facts_of(path)
                    return True
            return file_digest(path) == normalize_digest(digest)

    def add(self, data: bytes) -> tuple[str, bool]:
        """Store bytes. Return their digest and whether they are new."""
        digest = digest_of(data)
        return digest, self.put(digest, [data])

    def adopt(self, path: Path, held: BlobHold, on_read: Callable[[int, int], object]) -> str:
        """Move a file of `scratch` into place, adding it to `held`, and return its digest. Raises StoreError.

        `on_read` is called with (bytes read, bytes in total).
        """
        with storage_errors("read", path):
            digest = file_digest(path, on_read)
        held.keep(digest)
        with storage_errors("write", path):
            move_into_place(path, self.folder / digest.replace(":", "-"))
        return digest

    def add_file(self, path: Path) -> tuple[str, bool]:
        """Copy a file into the store. Return its digest and whether it is new."""
        with storage_errors("read", path):
            digest = file_digest(path)
            if self.touch(digest):
                return digest, False
            with path.open("rb") as file:
                return digest, self.put(digest, iter(lambda: file.read(_CHUNK_BYTES), b""))
