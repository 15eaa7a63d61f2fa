"""A registry that speaks the distribution protocol, as Ollama's and Docker's do: manifests and blobs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from urllib.parse import urlsplit

import httpx

from puna.errors import RegistryError
from puna.registry.network import in_time, open_client
from puna.registry.tokens import RegistryTokens, beginning
from puna.store.manifest import MANIFEST
from puna.store.names import ModelName

#: Bytes of a manifest; those of real models have a few thousand.
_MAX_MANIFEST = 4 << 20
#: Bytes of a registry's error that are worth repeating.
_MAX_QUOTED = 300


class RefusedError(Exception):
    """A registry's answer that is an error: its status and what it says."""

    def __init__(self, status: int, text: str, code: str = "") -> None:
        super().__init__(f"{status}: {text}" if text else str(status))
        self.status = status
        self.code = code  # what the hub calls it

    @classmethod
    def of(cls, answer: httpx.Response) -> RefusedError:
        """The error that an answer is."""
        with in_time(f"what {answer.url.host} refuses"):
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
        """`insecure` allows plain HTTP, which `plain` asks for, and unknown certificates.

        `endpoint` is asked instead of the name's host, with the `token` we have for it: its URL, which may be
        in a private network or without TLS, since whoever set up this machine chose it.
        Once `cancelled` is set, whatever is read raises TransferCancelledError.
        Who `writes` has a key for registries that ask for one, a new one if need be.
        """
        self.name = name
        self._client = open_client(insecure=insecure, stall_s=stall_s, endpoint=endpoint, cancelled=cancelled)
        self._base = endpoint or f"{'http' if plain else 'https'}://{name.host}"
        self._may_fall_back = insecure and not plain and not endpoint
        self._tokens = RegistryTokens(self._client, token, may_create_key=writes)

    @property
    def public_key(self) -> str:
        """The key we have shown the registry; empty if it did not ask."""
        return self._tokens.public_key

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def url(self, path: str) -> str:
        name = self.name
        return f"{self._base}/v2/{name.namespace}/{name.model}/{path}"

    def manifest(self) -> bytes:
        """The manifest of the model's tag, as the registry has it.

        Raises RegistryError, RefusedError, or httpx.TransportError.
        """
        try:
            return self._manifest()
        except httpx.ConnectError:
            if not self._may_fall_back:
                raise
            self._base = f"http://{self.name.host}"  # without TLS, as one tries it out at home
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
        """The bytes from `start` to before `end` of a blob, or all of it where the server knows no ranges."""
        headers = {"range": f"bytes={start}-{end - 1}"}
        with self.stream("GET", self.url(f"blobs/{digest}"), headers=headers) as answer:
            yield answer

    def put_manifest(self, data: bytes) -> None:
        """Let the manifest be the model's; the registry must have its blobs. Raises as `stream`."""
        headers = {"content-type": MANIFEST, "content-length": str(len(data))}
        url = self.url(f"manifests/{self.name.tag}")
        with self.stream("PUT", url, headers=headers, content=lambda: [data], redirected=False):
            pass

    def reach(self) -> None:
        """Find out whether the registry answers, without TLS if it must be and may.

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
        """The answer to a request, `authorised` if the registry asks for that. Raises RefusedError.

        `content` is called for each try. Redirections are the answer unless they are to be followed.
        """
        for fresh in (False, True):
            sent = dict(headers or {})
            ours = authorised and urlsplit(url).netloc == urlsplit(self._base).netloc
            token = self._tokens.token if ours else ""
            if token:
                sent["authorization"] = f"Bearer {token}"
            body = content() if content is not None else None
            request = self._client.build_request(method, url, headers=sent, content=body)
            # What is put there takes as long as it takes, and the registry may have to look at all of it.
            asks = method in ("GET", "HEAD")
            with in_time(f"an answer of {request.url.host}") if asks else nullcontext():
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
