"""Where an unfinished upload goes on, noted in a file beside the blob."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path

#: Addresses of sessions carry the registry's own state; longer ones are no addresses.
_MOST = 16 << 10


class SessionNote:
    """The address of the session by which one blob goes to one repository.

    Only one upload at a time has it, also of other processes; another one of the same blob finds nothing, and
    leaves nothing. All of it only saves work, so nothing that goes wrong is an error.
    """

    def __init__(self, blob: Path, repository: str) -> None:
        place = hashlib.sha256(repository.encode()).hexdigest()[:12]
        self._path = blob.with_name(f"{blob.name}-push-{place}")
        self._descriptor = -1

    def read(self) -> str:
        """The address; empty if there is none."""
        if self._descriptor < 0:
            return ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return os.pread(self._descriptor, _MOST, 0).decode("ascii")
        return ""

    def write(self, address: str) -> None:
        """Note another address, or none."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError, UnicodeEncodeError):
                data = address.encode("ascii")
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, data, 0)

    def __enter__(self) -> SessionNote:
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
            else:
                self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor < 0:
            return
        if not self.read():
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1
