"""A key, of which only a hash is kept."""

from __future__ import annotations

import hashlib
import re
import secrets
from datetime import UTC, datetime
from typing import Final

import msgspec

from puna.errors import KeyFileError
from puna.server.http.caller import SCOPES, Scope

#: Keys begin with this, so that programs which look for leaked secrets know them.
PREFIX: Final = "puna-"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`rate` requests a minute and `concurrency` requests at once; 0 means any number.

    The hash is plain SHA-256. Slow hashes protect words that people choose, which can be guessed; a key has
    256 random bits, which cannot, and it is hashed anew for every request.
    """

    name: str
    sha256: str
    scopes: tuple[Scope, ...] = SCOPES
    rate: int = 0
    concurrency: int = 0
    created: str = ""  # ISO 8601

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name: use at most 64 letters, digits and . _ @ -")
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256):
            raise ValueError(f"the key {self.name!r} needs the 64 hex digits of a SHA-256")
        if self.rate < 0 or self.concurrency < 0:
            raise ValueError(f"the key {self.name!r} has a negative limit")


def new_key(
    name: str = "", scopes: tuple[Scope, ...] = SCOPES, rate: int = 0, concurrency: int = 0
) -> tuple[str, Key]:
    """A random key, and what is kept of it. Raises KeyFileError for an impossible name or limit."""
    text = PREFIX + secrets.token_urlsafe(32)
    hashed = digest(text)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    try:
        return text, Key(name or hashed[:8], hashed, scopes, rate, concurrency, created)
    except ValueError as error:
        raise KeyFileError(str(error)) from error


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
