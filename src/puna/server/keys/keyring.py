"""The keys a server knows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hmac import compare_digest
from pathlib import Path

from puna.config import env
from puna.errors import KeyFileError, PunaError
from puna.server.keys.file import key_file, read_keys
from puna.server.keys.key import Key, digest

#: A key with fewer characters than this is a word that can be guessed.
_SHORTEST = 16

_log = logging.getLogger(__name__)


class Keyring:
    """The keys `given`, and those of `file`, which is read again when it has changed.

    Once there was a key to ask for, keys are asked for until the server ends: a file that is lost or damaged
    opens nothing. `optional` is whether there may be no file to begin with.
    """

    def __init__(self, given: Sequence[Key] = (), file: Path | None = None, *, optional: bool = True) -> None:
        self._given = list(given)
        self._file = file
        self._of_file: list[Key] = []
        self._read: object = None  # which state of the file that was
        self._required = bool(given) or not optional
        if file is not None and not optional and not file.exists():
            raise KeyFileError(f"{file}: there is no such file of keys; make one with 'puna key new'")
        self._refresh(first=True)

    @classmethod
    def from_env(cls) -> Keyring:
        """Those of `PUNA_API_KEYS` and of `PUNA_API_KEYS_FILE`. Raises KeyFileError."""
        texts = [text.strip() for text in env("API_KEYS").split(",") if text.strip()]
        if any(len(text) < _SHORTEST for text in texts):
            _log.warning(
                "PUNA_API_KEYS has a key of fewer than %d characters, which can be guessed; "
                "'puna key new' makes one that cannot",
                _SHORTEST,
            )
        given = [Key(name=digest(text)[:8], sha256=digest(text)) for text in texts]
        return cls(given, key_file(), optional=not env("API_KEYS_FILE"))

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        self._refresh()
        return self._required

    def find(self, text: str) -> Key | None:
        """The key that `text` is, compared in a time that does not depend on how much of it is right."""
        hashed = digest(text)
        found = [key for key in (*self._given, *self._of_file) if compare_digest(key.sha256, hashed)]
        return found[0] if found else None

    def _refresh(self, *, first: bool = False) -> None:
        if self._file is None:
            return
        try:
            status = self._file.stat()
            state = (status.st_mtime_ns, status.st_size, status.st_ino)
            if state == self._read:
                return
            self._read = state
            self._of_file = read_keys(self._file)
            self._required = True
        except FileNotFoundError:
            self._read, self._of_file = None, []
        except (PunaError, OSError) as error:
            self._required = True
            if first:
                raise error if isinstance(error, PunaError) else KeyFileError(str(error)) from error
            _log.error("%s; the keys read before stay valid", error)
