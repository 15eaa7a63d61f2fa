"""Atomic writes: a crash, a full disk or a second process never leaves a partial file."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from puna.errors import StoreError

_ADVICE = {
    errno.ENOSPC: "the disk is full: free some space, or point PUNA_MODELS at another disk",
    errno.EDQUOT: "the disk quota is used up: free some space, or point PUNA_MODELS elsewhere",
    errno.EACCES: "permission denied: check its owner, or point PUNA_MODELS at a directory of your own",
    errno.EPERM: "not permitted: check its owner, or point PUNA_MODELS at a directory of your own",
    errno.EROFS: "the file system is read-only: point PUNA_MODELS at a writable directory",
}


#: Bytes of a manifest, a config or a text, as many as a request can bring.
_MOST_TEXT = 64 << 20


def read_whole(path: Path) -> bytes:
    """The content of a file that is no model. Raises OSError, also for one that is too long to be a text."""
    with path.open("rb") as file:
        content = file.read(_MOST_TEXT + 1)
    if len(content) > _MOST_TEXT:
        raise OSError(errno.EFBIG, f"it has more than {_MOST_TEXT >> 20} MB, which is no text", str(path))
    return content


@contextlib.contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError into a StoreError that says what failed, where, and what to do about it."""
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
    `target`'s directory do not see it; otherwise next to `target`.
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
