"""Private files in a folder of bounded size, where those that nobody uses make room for new ones."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from puna.store.blobs import storage_errors, write_atomically

#: Maximum files, however small, and how long a file that nobody uses is kept.
_MAX_FILES: Final = 10_000
_MAX_DAYS: Final = 30

T = TypeVar("T")

_log = logging.getLogger(__name__)


class KeptFolder:
    """A folder of files of at most `max_bytes` together; the least recently used ones make room for new ones.

    Several processes may share the folder. All methods block; `lock` is for changes of what a file has.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.lock = threading.RLock()

    def put(self, name: str, data: bytes) -> bool:
        """Write a file; return False if it alone exceeds the limit. Raises StoreError."""
        if len(data) > self.max_bytes:
            return False
        with self.lock, storage_errors("write into", self.path):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self.path / name
            self._make_room(len(data), path)
            write_atomically(path, data, self.path)
            path.chmod(0o600)  # conversations are private
        return True

    def get(self, name: str, decode: Callable[[bytes], T]) -> T | None:
        """Return the decoded content of a file, or None if it is missing, too old or damaged.

        It is damaged if `decode` raises ValueError or RecursionError. Raises StoreError.
        """
        path = self.path / name
        with storage_errors("read", path):
            try:
                with path.open("rb") as file:
                    if os.fstat(file.fileno()).st_mtime < _oldest_s():
                        return None
                    data = file.read()
            except FileNotFoundError:
                return None
        try:
            return decode(data)
        except (ValueError, RecursionError) as error:  # it is lost, whatever happened to the file
            _log.warning("%s is damaged and counts as missing: %s", path, error)
            return None

    def touch(self, name: str) -> None:
        """Mark a file as used."""
        with contextlib.suppress(OSError):
            os.utime(self.path / name)

    def delete(self, name: str) -> None:
        """Delete a file if it exists. Raises StoreError."""
        with storage_errors("delete from", self.path):
            (self.path / name).unlink(missing_ok=True)

    def _make_room(self, size: int, replaced: Path) -> None:
        """Delete what is too old, and the least recently used until there is room for `size` more bytes."""
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    if entry.name != replaced.name:
                        found.append((status.st_mtime, status.st_size, entry.path))
        found.sort(reverse=True)
        total = size + sum(size for _, size, _ in found)
        while found and (total > self.max_bytes or len(found) >= _MAX_FILES or found[-1][0] < _oldest_s()):
            _, gone, path = found.pop()
            total -= gone
            Path(path).unlink(missing_ok=True)


def _oldest_s() -> float:
    return time.time() - _MAX_DAYS * 86_400
