"""A file read piece by piece. It is not mapped, so that one which is cut short meanwhile raises an error."""

from __future__ import annotations

import os
from pathlib import Path

from puna.errors import GGUFError

#: Bytes read at a time while going through a file.
_BLOCK_BYTES = 1 << 18


class Source:
    """Bytes `[0, size)` of a file, of the size it had when it was opened. Safe to share between threads."""

    def __init__(self, path: Path) -> None:
        """Raises GGUFError if the file cannot be opened, or is empty."""
        self.path = path
        try:
            if not path.is_file():
                problem = "is not a regular file" if path.exists() else "does not exist"
                raise GGUFError(f"{path}: {problem}")
            self._file = path.open("rb", buffering=0)
        except (OSError, ValueError) as error:  # ValueError: null byte in the path
            raise GGUFError(f"{path}: cannot be opened ({error})") from error
        self.size = os.fstat(self._file.fileno()).st_size
        if self.size == 0:
            self.close()
            raise GGUFError(f"{path.name}: the file is empty")

    def read(self, begin: int, end: int) -> bytes:
        """The bytes `[begin, end)`. Raises GGUFError if the file has become shorter, or cannot be read."""
        pieces = []
        try:
            while begin < end:
                piece = os.pread(self._file.fileno(), end - begin, begin)
                if not piece:
                    raise GGUFError(f"{self.path.name}: the file became shorter while it was read")
                pieces.append(piece)
                begin += len(piece)
        except (OSError, ValueError) as error:  # ValueError: it is closed
            raise GGUFError(f"{self.path.name}: cannot be read ({error})") from error
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def block(self, begin: int, least: int) -> bytes:
        """What follows `begin`: `least` bytes, and as many more as are worth reading at once."""
        return self.read(begin, max(begin + least, min(begin + _BLOCK_BYTES, self.size)))

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()
