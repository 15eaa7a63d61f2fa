"""Shared locks on names, which every process sees and which end with the process that holds them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

from puna.system import has_linux

#: `struct flock` of 64-bit Linux: type, whence, start, length, process.
_RANGE: Final = struct.Struct("hhqqi4x")


class NamedLocks:
    """Shared locks on names of hex digits, at least 15 of them.

    On Linux, a lock is one on a byte of a file at `path`; elsewhere, it is one on a file of that name in a
    folder beside it.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError where nothing can be written."""
        self._path = path
        self._descriptors: dict[str, int] = {}
        if has_linux():
            self._descriptors[""] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        else:
            _folder(path).mkdir(exist_ok=True)

    def hold(self, name: str) -> None:
        """Lock a name. Raises OSError on a file system without locks, or once this is closed."""
        if has_linux():
            fcntl.fcntl(self._descriptors[""], fcntl.F_OFD_SETLK, _byte_of(name, fcntl.F_RDLCK))
        elif name not in self._descriptors:
            self._descriptors[name] = _locked(_folder(self._path) / name)

    def close(self) -> None:
        """Release all locks."""
        for name, descriptor in self._descriptors.items():
            if name:
                _remove_unless_locked(_folder(self._path) / name, descriptor)
            os.close(descriptor)
        self._descriptors.clear()


def is_locked(path: Path, name: str) -> bool:
    """Whether this process or another holds a lock on a name. Raises OSError if that cannot be found out."""
    if has_linux():
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _byte_of(name, fcntl.F_WRLCK))
        finally:
            os.close(descriptor)
        return bool(_RANGE.unpack(answer)[0] != fcntl.F_UNLCK)
    descriptor = os.open(_folder(path) / name, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _byte_of(name: str, kind: int) -> bytes:
    """Return the `struct flock` for a name."""
    return _RANGE.pack(kind, os.SEEK_SET, int(name[:15], 16), 1, 0)


def _folder(path: Path) -> Path:
    return path.with_name(f"{path.name}.d")


def _locked(path: Path) -> int:
    """Return a descriptor of the file at `path` with a shared lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            # Its last holder may have removed the file in between.
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _remove_unless_locked(path: Path, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
