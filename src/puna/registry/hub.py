"""Hugging Face's hub, or another one of its kind (`HF_ENDPOINT`): a repository's files, by its tree API."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import quote, urljoin, urlsplit

import httpx
import msgspec

from puna.errors import RegistryError, UnreachableError
from puna.registry.download import Fetch
from puna.registry.network import in_time, open_client, what_failed
from puna.registry.quants import RepositoryFile
from puna.registry.remote import RefusedError
from puna.registry.tokens import beginning
from puna.store.names import HUB_HOSTS, ModelName

_ENDPOINT = "https://huggingface.co"
_MOST_LISTED = 32 << 20
_MOST_PAGES = 20
_MOST_TEXT = 1 << 20


class _Lfs(msgspec.Struct):
    oid: str
    size: int


class _Entry(msgspec.Struct):
    type: str
    path: str
    lfs: _Lfs | None = None


class Hub:
    """One repository. Entered before it is asked; safe to use from several threads."""

    def __init__(self, repository: str, endpoint: str, token: str) -> None:
        self.cancelled: threading.Event | None = None  # ends what is read once it is set
        self.repository = repository
        self.endpoint = endpoint
        self.token = token

    def __enter__(self) -> Hub:
        self._client = open_client(endpoint=self.endpoint, cancelled=self.cancelled)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def files(self) -> tuple[list[RepositoryFile], set[str]]:
        """The large files, with their digests, and the paths of all others. Raises RegistryError."""
        large: list[RepositoryFile] = []
        others: set[str] = set()
        url = f"{self.endpoint}/api/models/{self.repository}/tree/main?recursive=true"
        for _ in range(_MOST_PAGES):
            entries, url = self._page(url)
            for entry in entries:
                if entry.type == "file" and entry.lfs is None:
                    others.add(entry.path)
                elif entry.lfs is not None and 0 <= entry.lfs.size < 1 << 50:
                    large.append(RepositoryFile(entry.path, entry.lfs.size, f"sha256:{entry.lfs.oid}"))
            if not url:
                break
        return large, others

    def text(self, path: str) -> str:
        """A small file. Raises RegistryError."""
        with self._told(), in_time(path), self._get(self._file_url(path), {}) as answer:
            data = beginning(answer, _MOST_TEXT + 1)
        if len(data) > _MOST_TEXT:
            raise RegistryError(f"{path} of {self.repository} has more than {_MOST_TEXT >> 20} MB")
        return data.decode("utf-8", "replace")

    def fetch(self, path: str) -> Fetch:
        """What fetches parts of a large file."""
        return partial(self._part, path)

    @contextmanager
    def _part(self, path: str, start: int, end: int) -> Iterator[httpx.Response]:
        with self._get(self._file_url(path), {"range": f"bytes={start}-{end - 1}"}) as answer:
            yield answer

    def _file_url(self, path: str) -> str:
        return f"{self.endpoint}/{self.repository}/resolve/main/{quote(path)}"

    def _page(self, url: str) -> tuple[list[_Entry], str]:
        """A page of the tree, and the address of the next one; empty after the last."""
        with self._told(), in_time("the list of files"), self._get(url, {}) as answer:
            data = beginning(answer, _MOST_LISTED)
            following = answer.links.get("next", {}).get("url", "")
        try:
            entries = msgspec.json.decode(data, type=list[_Entry])
        except msgspec.DecodeError as error:
            raise RegistryError(
                f"{self.endpoint} does not answer as a hub of models does: {error}"
            ) from error
        following = following and urljoin(url, following)
        # Who lists files elsewhere is not asked with our token.
        return entries, following if urlsplit(following).netloc == urlsplit(self.endpoint).netloc else ""

    @contextmanager
    def _get(self, url: str, headers: dict[str, str]) -> Iterator[httpx.Response]:
        if self.token:
            headers = headers | {"authorization": f"Bearer {self.token}"}
        with ExitStack() as stack:
            with in_time(f"an answer of {urlsplit(url).hostname}"):
                answer = stack.enter_context(self._client.stream("GET", url, headers=headers))
            if answer.is_error:
                raise RefusedError.of(answer)
            yield answer

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except RefusedError as refusal:
            raise self.error(refusal) from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(f"{self.endpoint}: {what_failed(error)}") from error

    def error(self, refusal: RefusedError) -> RegistryError:
        """What the hub refuses, and what to do about it."""
        page = f"{self.endpoint}/{self.repository}"
        have = "the token in HF_TOKEN" if self.token else "HF_TOKEN, which is not set for the server,"
        if refusal.code == "GatedRepo" or refusal.status == 403:
            return RegistryError(
                f"{self.repository} is gated: agree to its terms at {page}; {have} must be of an account "
                "that did"
            )
        if refusal.status in (401, 404):
            return RegistryError(
                f"file does not exist: there is no {page}, or it is private; {have} must be of an account "
                "that may read it"
            )
        return RegistryError(f"{self.endpoint}: {refusal}")


def hub_of(name: ModelName) -> Hub | None:
    """The repository that a name means; None for names of other registries. Raises RegistryError."""
    if name.host.lower() not in HUB_HOSTS:
        return None
    endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
    if urlsplit(endpoint).scheme not in ("http", "https") or not urlsplit(endpoint).netloc:
        raise RegistryError(f"HF_ENDPOINT={endpoint} is no web address")
    return Hub(f"{name.namespace}/{name.model}", endpoint, _token())


def _token() -> str:
    """`HF_TOKEN`, or what Hugging Face's own programs have saved."""
    if given := os.environ.get("HF_TOKEN", "").strip():
        return given
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    try:
        return (Path(home) / "token").read_text("ascii")[:1000].strip()
    except (OSError, ValueError):
        return ""
