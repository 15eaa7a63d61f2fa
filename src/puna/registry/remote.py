"""Registries with the distribution protocol, such as Ollama's and Docker's: manifests and blobs."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
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
from puna.registry.network import in_time, open_client
from puna.store.manifest import MANIFEST
from puna.store.names import ModelName


class Identity:
    """The private key that identifies this server to registries."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @property
    def public_key(self) -> str:
        """The public key in the form registries take: `ssh-ed25519 AAAA...`."""
        return self._key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()

    def signature(self, text: str) -> str:
        """Return the `Authorization` header for Ollama's registry of the request described by `text`."""
        signed = base64.b64encode(self._key.sign(text.encode())).decode()
        return f"{self.public_key.split()[1]}:{signed}"


def key_path() -> Path:
    """Return the path of the key: Ollama's, so that an account needs only one key for both programs."""
    return Path.home() / ".ollama" / "id_ed25519"


def identity(*, create: bool) -> Identity | None:
    """Return our identity; without a key, write a new one if `create`, else return None.

    Raises RegistryError if the key cannot be read.
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
        raise RegistryError(f"{path} is not an OpenSSH key without a password: {error}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise RegistryError(f"{path} is not an ed25519 key, the only kind that registries accept")
    return Identity(key)


def _created(path: Path) -> Identity | None:
    """Write a new key to `path`, and return it or the one that another process just wrote there."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    made = Identity(key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix="id_", dir=path.parent)  # readable only by us
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
    """The current token for one repository, renewed on demand."""

    def __init__(self, client: httpx.Client, token: str = "", *, may_create_key: bool = False) -> None:
        """`token` is one that we have from the start."""
        self.token = token
        self.public_key = ""  # of the identity we have used
        self._client = client
        self._may_create_key = may_create_key

    def renew(self, challenge: str, url: str) -> bool:
        """Answer the challenge of a request to `url`; return whether that gave a new token."""
        kind, _, rest = challenge.partition(" ")
        parameters = dict(_PARAMETER.findall(rest))
        realm = parameters.pop("realm", "")
        if kind.lower() != "bearer" or urlsplit(realm).scheme not in ("http", "https"):
            return False
        query = [("service", parameters["service"])] if "service" in parameters else []
        query += [("scope", scope) for scope in parameters.get("scope", "").split()]
        before, self.token = self.token, self._signed(realm, query, url) or self._anonymous(realm, query)
        return self.token not in ("", before)

    def _signed(self, realm: str, query: list[tuple[str, str]], url: str) -> str:
        """Request a token with our identity, which only the registry itself may learn."""
        if urlsplit(realm).netloc != urlsplit(url).netloc or (identity := self._identity()) is None:
            return ""
        self.public_key = identity.public_key
        query = [*query, ("ts", str(int(time.time()))), ("nonce", secrets.token_urlsafe(16))]
        token_url = _with_query(realm, query)
        empty_body = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
        signature = identity.signature(f"GET,{token_url},{empty_body}")
        return self._token(token_url, {"authorization": signature})

    def _identity(self) -> Identity | None:
        from puna.registry.remote import identity

        return identity(create=self._may_create_key)

    def _anonymous(self, realm: str, query: list[tuple[str, str]]) -> str:
        return self._token(_with_query(realm, query), {})

    def _token(self, url: str, headers: dict[str, str]) -> str:
        request = self._client.stream("GET", url, headers=headers)
        with in_time(f"a token from {urlsplit(url).hostname}"), request as answer:
            data = b"" if answer.is_error else beginning(answer, _MAX_TOKEN)
        try:
            reply = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError:
            return ""
        token = reply.get("token") or reply.get("access_token")
        return token if isinstance(token, str) else ""


def _with_query(realm: str, query: list[tuple[str, str]]) -> str:
    """Return the address exactly as it is requested and signed."""
    joint = "&" if urlsplit(realm).query else "?"
    return str(httpx.URL(f"{realm}{joint}{urlencode(query)}" if query else realm))


def beginning(answer: httpx.Response, most: int) -> bytes:
    """Read at most the first `most` bytes of a response."""
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) >= most:
            break
    return bytes(data[:most])


#: Maximum bytes of a manifest; those of real models have a few thousand.
_MAX_MANIFEST = 4 << 20
#: Maximum bytes of a registry's error to quote.
_MAX_QUOTED = 300


class RefusedError(Exception):
    """A registry's error response: its status and text."""

    def __init__(self, status: int, text: str, code: str = "") -> None:
        super().__init__(f"{status}: {text}" if text else str(status))
        self.status = status
        self.code = code  # the hub's code of the error

    @classmethod
    def of(cls, answer: httpx.Response) -> RefusedError:
        """Return the error of a response."""
        with in_time(f"an error of {answer.url.host}"):
            data = beginning(answer, _MAX_QUOTED)
        text = " ".join(data.decode(errors="replace").split())
        return cls(answer.status_code, text, answer.headers.get("x-error-code", ""))


class Registry:
    """The repository of one model in its registry. Close it when done; safe to use from several threads."""

    def __init__(
        self,
        name: ModelName,
        *,
        insecure: bool = False,
        plain: bool = False,
        writes: bool = False,
        endpoint: str = "",
        token: str = "",
        stall_s: float = 30.0,
        cancelled: threading.Event | None = None,
    ) -> None:
        """`insecure` allows plain HTTP, which `plain` requests, and unknown certificates.

        `endpoint` is a URL used instead of the name's host, with our `token` for it; it may be in a private
        network or without TLS, since this machine's administrator chose it. `writes` creates a key for
        registries that require one, if there is none. Once `cancelled` is set, reading raises
        TransferCancelledError.
        """
        self.name = name
        self._client = open_client(insecure=insecure, stall_s=stall_s, endpoint=endpoint, cancelled=cancelled)
        self._base = endpoint or f"{'http' if plain else 'https'}://{name.host}"
        self._may_fall_back = insecure and not plain and not endpoint
        self._tokens = RegistryTokens(self._client, token, may_create_key=writes)

    @property
    def public_key(self) -> str:
        """The public key we have used with the registry; empty if it did not require one."""
        return self._tokens.public_key

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def url(self, path: str) -> str:
        name = self.name
        return f"{self._base}/v2/{name.namespace}/{name.model}/{path}"

    def manifest(self) -> bytes:
        """Fetch the manifest of the model's tag.

        Raises RegistryError, RefusedError, or httpx.TransportError.
        """
        try:
            return self._manifest()
        except httpx.ConnectError:
            if not self._may_fall_back:
                raise
            self._base = f"http://{self.name.host}"  # as for a registry on a private network
            return self._manifest()

    def _manifest(self) -> bytes:
        url, headers = self.url(f"manifests/{self.name.tag}"), {"accept": MANIFEST}
        with in_time(f"the manifest of {self.name}"), self.stream("GET", url, headers=headers) as answer:
            data = beginning(answer, _MAX_MANIFEST + 1)
        if len(data) > _MAX_MANIFEST:
            raise RegistryError(f"the manifest of {self.name} has more than {_MAX_MANIFEST >> 20} MB")
        return data

    @contextmanager
    def blob(self, digest: str, start: int, end: int) -> Iterator[httpx.Response]:
        """Request the bytes of a blob from `start` to before `end`; servers without ranges send all of it."""
        headers = {"range": f"bytes={start}-{end - 1}"}
        with self.stream("GET", self.url(f"blobs/{digest}"), headers=headers) as answer:
            yield answer

    def put_manifest(self, data: bytes) -> None:
        """Upload the model's manifest; the registry must have its blobs. Raises as `stream`."""
        headers = {"content-type": MANIFEST, "content-length": str(len(data))}
        url = self.url(f"manifests/{self.name.tag}")
        with self.stream("PUT", url, headers=headers, content=lambda: [data], redirected=False):
            pass

    def reach(self) -> None:
        """Fall back to plain HTTP, if that is allowed and the registry does not answer with TLS.

        Raises RegistryError, RefusedError, or httpx.TransportError.
        """
        if self._may_fall_back:
            try:
                self._client.head(self.url("tags/list"))
            except httpx.ConnectError:
                self._base = f"http://{self.name.host}"

    def has(self, digest: str) -> bool:
        """Whether the registry has a blob."""
        try:
            with self.stream("HEAD", self.url(f"blobs/{digest}")):
                return True
        except RefusedError as refusal:
            if refusal.status == 404:
                return False
            raise

    @contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: Callable[[], Iterable[bytes]] | None = None,
        redirected: bool = True,
        authorised: bool = True,
    ) -> Iterator[httpx.Response]:
        """Send a request, `authorised` if required, and yield the response. Raises RefusedError.

        `content` is called for each try. Redirects are followed if `redirected`, else they are the response.
        """
        for fresh in (False, True):
            sent = dict(headers or {})
            ours = authorised and urlsplit(url).netloc == urlsplit(self._base).netloc
            token = self._tokens.token if ours else ""
            if token:
                sent["authorization"] = f"Bearer {token}"
            body = content() if content is not None else None
            request = self._client.build_request(method, url, headers=sent, content=body)
            # Uploads may take long, and the registry may have to check all the data.
            reads = method in ("GET", "HEAD")
            with in_time(f"an answer of {request.url.host}") if reads else nullcontext():
                answer = self._client.send(request, stream=True, follow_redirects=redirected)
            try:
                if (
                    answer.status_code == 401
                    and ours
                    and not fresh
                    and answer.url.host == urlsplit(url).hostname
                    and self._tokens.renew(answer.headers.get("www-authenticate", ""), url)
                ):
                    continue
                if answer.is_error:
                    raise RefusedError.of(answer)
                yield answer
                return
            finally:
                answer.close()
