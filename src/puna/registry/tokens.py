"""Signing in to registries: tokens for those that answer 401, and the ed25519 key that signs requests."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import msgspec
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
from puna.registry.network import in_time


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


_MAX_TOKEN = 64 << 10
_PARAMETER = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class RegistryTokens:
    """The newest token for one repository, and the way to another one."""

    def __init__(self, client: httpx.Client, token: str = "", *, may_create_key: bool = False) -> None:
        """`token` is one that we have before anybody asks."""
        self.token = token
        self.public_key = ""  # of the identity we have shown
        self._client = client
        self._may_create_key = may_create_key

    def renew(self, challenge: str, url: str) -> bool:
        """Answer the challenge of a request to `url`; whether there is another token now."""
        kind, _, rest = challenge.partition(" ")
        asked = dict(_PARAMETER.findall(rest))
        realm = asked.pop("realm", "")
        if kind.lower() != "bearer" or urlsplit(realm).scheme not in ("http", "https"):
            return False
        query = [("service", asked["service"])] if "service" in asked else []
        query += [("scope", scope) for scope in asked.get("scope", "").split()]
        before, self.token = self.token, self._signed(realm, query, url) or self._anybodys(realm, query)
        return self.token not in ("", before)

    def _signed(self, realm: str, query: list[tuple[str, str]], url: str) -> str:
        """What we get as who we are. Only the registry itself learns that."""
        if urlsplit(realm).netloc != urlsplit(url).netloc or (identity := self._identity()) is None:
            return ""
        self.public_key = identity.public_key
        query = [*query, ("ts", str(int(time.time()))), ("nonce", secrets.token_urlsafe(16))]
        place = _with_query(realm, query)
        nothing = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
        signature = identity.signature(f"GET,{place},{nothing}")
        return self._asked(place, {"authorization": signature})

    def _identity(self) -> Identity | None:
        from puna.registry.tokens import identity

        return identity(create=self._may_create_key)

    def _anybodys(self, realm: str, query: list[tuple[str, str]]) -> str:
        return self._asked(_with_query(realm, query), {})

    def _asked(self, place: str, headers: dict[str, str]) -> str:
        asked = self._client.stream("GET", place, headers=headers)
        with in_time(f"a token of {urlsplit(place).hostname}"), asked as answer:
            data = b"" if answer.is_error else beginning(answer, _MAX_TOKEN)
        try:
            reply = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError:
            return ""
        token = reply.get("token") or reply.get("access_token")
        return token if isinstance(token, str) else ""


def _with_query(realm: str, query: list[tuple[str, str]]) -> str:
    """The address, exactly as it is asked and signed."""
    joint = "&" if urlsplit(realm).query else "?"
    return str(httpx.URL(f"{realm}{joint}{urlencode(query)}" if query else realm))


def beginning(answer: httpx.Response, most: int) -> bytes:
    """The first `most` bytes of an answer that is being read."""
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) >= most:
            break
    return bytes(data[:most])
