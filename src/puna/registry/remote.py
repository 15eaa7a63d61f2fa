"""A registry that speaks the distribution protocol, as Ollama's and Docker's do: manifests and blobs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from puna.errors import RegistryError
from puna.registry.network import open_client
from puna.store.manifest import MANIFEST
from puna.store.names import ModelName

#: Bytes of a manifest; those of real models have a few thousand.
_MOST_MANIFEST = 4 << 20
_MOST_TOKEN = 64 << 10
#: Bytes of a registry's error that are worth repeating.
_MOST_QUOTED = 300

_PARAMETER = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class RefusedError(Exception):
    """A registry's answer that is an error: its status and what it says."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}" if text else str(status))
        self.status = status


class Registry:
    """The repository of one model in its registry. Close it when done; safe to use from several threads."""

    def __init__(
        self, name: ModelName, *, insecure: bool = False, plain: bool = False, stall_s: float = 30.0
    ) -> None:
        """`insecure` allows plain HTTP, which `plain` asks for, and unknown certificates."""
        self.name = name
        self._client = open_client(insecure=insecure, stall_s=stall_s)
        self._scheme = "http" if plain else "https"
        self._may_fall_back = insecure and not plain
        self._token = ""

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _url(self, path: str) -> str:
        name = self.name
        return f"{self._scheme}://{name.host}/v2/{name.namespace}/{name.model}/{path}"

    def manifest(self) -> bytes:
        """The manifest of the model's tag, as the registry has it.

        Raises RegistryError, RefusedError, or httpx.TransportError.
        """
        try:
            return self._manifest()
        except httpx.ConnectError:
            if not self._may_fall_back:
                raise
            self._scheme = "http"  # a registry without TLS, as one tries it out at home
            return self._manifest()

    def _manifest(self) -> bytes:
        with self._get(f"manifests/{self.name.tag}", {"accept": MANIFEST}) as answer:
            data = _beginning(answer, _MOST_MANIFEST + 1)
        if len(data) > _MOST_MANIFEST:
            raise RegistryError(f"the manifest of {self.name} has more than {_MOST_MANIFEST >> 20} MB")
        return data

    def blob(self, digest: str, start: int, end: int) -> AbstractContextManager[httpx.Response]:
        """The bytes from `start` to before `end` of a blob, or all of it where the server knows no ranges."""
        return self._get(f"blobs/{digest}", {"range": f"bytes={start}-{end - 1}"})

    @contextmanager
    def _get(self, path: str, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """What is at a path of the repository, authorised if it asks for that. Raises RefusedError."""
        url = self._url(path)
        for fresh in (False, True):
            token = self._token
            sent = {**headers, "authorization": f"Bearer {token}"} if token else headers
            with self._client.stream("GET", url, headers=sent) as answer:
                if answer.status_code == 401 and not fresh and answer.url.host == urlsplit(url).hostname:
                    self._token = self._new_token(answer.headers.get("www-authenticate", ""))
                    if self._token != token:
                        continue
                if answer.is_error:
                    raise RefusedError(answer.status_code, _quoted(answer))
                yield answer
                return

    def _new_token(self, challenge: str) -> str:
        """What the realm that a challenge names gives to anybody; empty if it names none."""
        kind, _, rest = challenge.partition(" ")
        asked = dict(_PARAMETER.findall(rest))
        realm = asked.pop("realm", "")
        if kind.lower() != "bearer" or not realm:
            return ""
        query = [("service", asked["service"])] if "service" in asked else []
        query += [("scope", scope) for scope in asked.get("scope", "").split()]
        with self._client.stream("GET", realm, params=query) as answer:
            data = b"" if answer.is_error else _beginning(answer, _MOST_TOKEN)
        try:
            reply = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError:
            return ""
        token = reply.get("token") or reply.get("access_token")
        return token if isinstance(token, str) else ""


def _beginning(answer: httpx.Response, most: int) -> bytes:
    """The first `most` bytes of an answer that is being read."""
    data = bytearray()
    for chunk in answer.iter_raw():
        data += chunk
        if len(data) >= most:
            break
    return bytes(data[:most])


def _quoted(answer: httpx.Response) -> str:
    return " ".join(_beginning(answer, _MOST_QUOTED).decode(errors="replace").split())
