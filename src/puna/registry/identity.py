"""Who we are to registries: an ed25519 key, the same file as Ollama's, and signatures made with it.

Imported only once a registry asks: the library that signs takes a while to load.
"""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from puna.errors import RegistryError


class Identity:
    """A private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @property
    def public_key(self) -> str:
        """The public key as it is given to registries: `ssh-ed25519 AAAA...`."""
        return self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()

    def signature(self, text: str) -> str:
        """What Ollama's registry takes as `Authorization` of a request described by `text`."""
        signed = base64.b64encode(self._key.sign(text.encode())).decode()
        return f"{self.public_key.split()[1]}:{signed}"


def key_path() -> Path:
    """Where the key lies: Ollama's place, so that an account that knows the key knows both programs."""
    return Path.home() / ".ollama" / "id_ed25519"


def identity(*, create: bool) -> Identity | None:
    """Our identity; without a key a new one is written if `create`, else it is None.

    Raises RegistryError if there is a key that cannot be read.
    """
    path = key_path()
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return _created(path) if create else None
    except OSError as error:
        raise RegistryError(f"cannot read the key {path}: {error.strerror}") from error
    try:
        key = load_ssh_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise RegistryError(f"{path} is no OpenSSH key without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RegistryError(f"{path} is no ed25519 key; registries take no other")
    return Identity(key)


def _created(path: Path) -> Identity | None:
    """A new key at `path`, or the one that somebody else has just put there."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    made = Identity(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix="id_", dir=path.parent)  # readable by us alone
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(private)
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
        with contextlib.suppress(OSError):
            path.with_name(f"{path.name}.pub").write_text(f"{made.public_key}\n")
    except FileExistsError:
        return identity(create=False)
    except OSError as error:
        raise RegistryError(f"cannot write a key to {path}: {error.strerror}") from error
    return made
