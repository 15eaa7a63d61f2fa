"""Blobs in use: a model that is made of files which another one is made of, too, must not delete them.

A lock belongs to a digest and not to a file, which may be replaced meanwhile: it is one byte of a file beside
the blobs, at an offset that the digest gives. The system releases it when its process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Final, Self

_LOCKS: Final = ".puna.held"
#: `struct flock` of Linux on 64 bits: type, whence, start, length, process.
_RANGE: Final = struct.Struct("hhqqi4x")


class BlobHold:
    """Blobs that nobody deletes until this is closed; in a folder that cannot be written to nobody would."""

    def __init__(self, folder: Path) -> None:
        """`folder` is that of the blobs, whose digests are given as `normalize_digest` gives them."""
        self._before: dict[str, tuple[Path, int, int]] = {}
        self._descriptor = -1
        with contextlib.suppress(OSError):
            self._descriptor = os.open(folder.parent / _LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def keep(self, digest: str) -> None:
        """Hold a blob, whether or not it is there yet."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _byte_of(digest, fcntl.F_RDLCK))

    def add(self, digest: str, path: Path) -> None:
        """Hold a blob that is there. Raises OSError if it is not."""
        self.keep(digest)
        status = path.lstat()
        self._before[digest] = (path, status.st_ino, status.st_mtime_ns)

    def unclaimed(self) -> set[str]:
        """The digests of those that were there, and that no client has uploaded, or asked for, since then."""
        found = set()
        for digest, (path, inode, modified_ns) in self._before.items():
            with contextlib.suppress(OSError):
                status = path.lstat()
                if (status.st_ino, status.st_mtime_ns) == (inode, modified_ns):
                    found.add(digest)
        return found

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_held(blob: Path) -> bool:
    """Whether somebody holds the blob, in this process or another."""
    try:
        descriptor = os.open(blob.parent.parent / _LOCKS, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _byte_of(blob.name, fcntl.F_WRLCK))
        return bool(_RANGE.unpack(answer)[0] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _byte_of(digest: str, kind: int) -> bytes:
    """The lock of a digest, or of a blob's name."""
    start = int(digest[-64:-49], 16)
    return _RANGE.pack(kind, os.SEEK_SET, start, 1, 0)
