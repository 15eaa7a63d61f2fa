"""Pulls of a GGUF file from a web address, with its digest computed during the download."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from contextlib import ExitStack
from pathlib import Path

import httpx
import msgspec

from puna.errors import RegistryError
from puna.registry.download import TRANSIENT, BlobPuller
from puna.registry.network import TransferCancelledError, in_time, open_client, what_failed
from puna.registry.remote import RefusedError
from puna.registry.report import TransferProgress, translated_errors
from puna.store import ModelName, ModelSpec, StoredModel
from puna.store.blobs import move_into_place, read_whole, storage_errors
from puna.store.facts import MAGIC

_CHUNK = 1 << 20
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", re.ASCII)
#: Limits for a file of unknown length: its maximum bytes, and the bytes to leave free on the disk.
_MAX_BYTES = 1 << 50
_LEFT_FREE = 1 << 30


def pull_file(puller: BlobPuller, url: str, model: ModelName, *, insecure: bool = False) -> StoredModel:
    """Make `model` from the file at `url`. Raises RegistryError, StoreError and TransferCancelledError."""
    address = url.partition("#")[0]
    with (
        translated_errors(),
        open_client(insecure=insecure, cancelled=puller.cancelled) as client,
        _PartialFile(puller, address) as file,
    ):
        version = file.version(client)
        origin = f"{_without_secrets(address)} {version}"
        digest = _known(puller, model, origin) if version else ""
        if not digest:
            file.fetch(client)
            digest = file.finish()
    name = f"{model.model}.gguf"
    spec = ModelSpec(files={name: digest}, origins={name: origin} if version else {})
    return puller.store.create(model, spec, lambda status: puller.report(TransferProgress(status)))


def _known(puller: BlobPuller, model: ModelName, origin: str) -> str:
    """Return the digest of the file if the model has this version of it; else an empty string."""
    if not puller.store.exists(model):
        return ""
    layer = puller.store.get(model).model_layer
    return layer.digest if layer and layer.origin == origin and puller.store.has_blob(layer.digest) else ""


def _without_secrets(url: str) -> str:
    """Return the address without its query and user, which may be secret."""
    address = httpx.URL(url)
    return str(address.copy_with(query=None, userinfo=b""))


class _Note(msgspec.Struct):
    """The version of the file to which the bytes so far belong."""

    version: str = ""
    size: int = 0


class _PartialFile:
    """The file during its download, beside the blobs, locked against other pulls of the same address."""

    def __init__(self, puller: BlobPuller, url: str) -> None:
        self._puller = puller
        self._url = url
        name = hashlib.sha256(url.encode()).hexdigest()
        self._path = puller.store.blobs.folder / f"url-{name}-partial"
        self._note_path = self._path.with_name(f"{self._path.name}.json")
        self._note = _Note()
        self._hash = hashlib.sha256()
        self._have = 0
        self._descriptor = -1

    def __enter__(self) -> _PartialFile:
        with storage_errors("write into", self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(descriptor).st_ino == os.stat(self._path).st_ino:
                        break
                except (BlockingIOError, FileNotFoundError):
                    pass
                os.close(descriptor)
                self._wait(2 * self._puller.patience.report_s)
        self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def version(self, client: httpx.Client) -> str:
        """Return the validator of the file's version, its entity tag or date; empty if there is none."""
        try:
            with in_time("the file's headers"):
                answer = client.head(self._url)
        except httpx.TransportError:
            return ""  # the download will report the problem
        return _version(answer) if answer.is_success else ""

    def fetch(self, client: httpx.Client) -> None:
        """Download the missing bytes, with retries."""
        self._resume()
        tries = 0
        while True:
            before = self._have
            try:
                self._request(client)
                return
            except (httpx.TransportError, httpx.StreamError) as error:
                problem = what_failed(error)
            except RefusedError as refusal:
                if refusal.status not in TRANSIENT:
                    raise
                problem = str(refusal)
            tries = 0 if self._have >= before + _CHUNK else tries + 1
            if tries >= self._puller.patience.tries:
                raise RegistryError(f"max retries exceeded: {problem}")
            self._wait(self._puller.patience.first_wait_s * 2 ** max(tries - 1, 0))

    def finish(self) -> str:
        """Make the file a blob and return its digest."""
        digest = f"sha256:{self._hash.hexdigest()}"
        with storage_errors("write", self._path):
            os.fsync(self._descriptor)
            move_into_place(self._path, self._puller.store.blob_path(digest))
            self._note_path.unlink(missing_ok=True)
        return digest

    def _request(self, client: httpx.Client) -> None:
        """Make one request for the missing bytes."""
        headers = {"range": f"bytes={self._have}-", "if-range": self._note.version} if self._have else {}
        with ExitStack() as stack:
            with in_time("the start of the file"):
                answer = stack.enter_context(client.stream("GET", self._url, headers=headers))
            if answer.status_code == 416:
                self._start_over(_Note())
                raise httpx.RemoteProtocolError("the file has changed on the server")
            if answer.is_error:
                raise RefusedError.of(answer)
            self._check_range(answer)
            self._check_space()
            for data in answer.iter_raw():
                if self._puller.cancelled.is_set():
                    raise TransferCancelledError
                self._write(data)
                self._tell()
                if not self._note.size:
                    self._puller.check_space(_LEFT_FREE)
        if self._note.size and self._have < self._note.size:
            raise httpx.RemoteProtocolError("the connection ended early")

    def _check_range(self, answer: httpx.Response) -> None:
        """Check the range of the response; start over unless it continues the file."""
        given = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if answer.status_code == 206:
            if given is not None and int(given[1]) == self._have and int(given[2]) == self._note.size:
                return
            raise RegistryError(
                f"{answer.url.host} sent {answer.headers.get('content-range')!r}, not the missing bytes"
            )
        size = answer.headers.get("content-length", "")
        self._start_over(_Note(_version(answer), int(size) if re.fullmatch("[0-9]{1,18}", size) else 0))

    def _write(self, data: bytes) -> None:
        if self._have < len(MAGIC) and (begin := data[: len(MAGIC)]) != MAGIC and self._have == 0:
            raise RegistryError(f"{_without_secrets(self._url)} is not a GGUF file: it starts with {begin!r}")
        if self._have + len(data) > (self._note.size or _MAX_BYTES):
            raise RegistryError(f"{_without_secrets(self._url)} has more bytes than announced")
        with storage_errors("write", self._path):
            view, at = memoryview(data), self._have
            while view:
                written = os.pwrite(self._descriptor, view, at)
                view, at = view[written:], at + written
        self._hash.update(data)
        self._have += len(data)

    def _resume(self) -> None:
        """Resume an earlier pull if its bytes are known to belong to the same version of the file."""
        try:
            note = msgspec.json.decode(read_whole(self._note_path), type=_Note)
        except (OSError, msgspec.DecodeError):
            return
        size = os.fstat(self._descriptor).st_size
        if not note.version or not 0 < size <= note.size:
            return
        self._note = note
        while data := os.pread(self._descriptor, 8 * _CHUNK, self._have):
            self._hash.update(data)
            self._have += len(data)
            self._tell()

    def _start_over(self, note: _Note) -> None:
        self._note, self._have, self._hash = note, 0, hashlib.sha256()
        with storage_errors("write", self._path):
            os.ftruncate(self._descriptor, 0)
            temporary = self._note_path.with_name(f"{self._note_path.name}.tmp")
            temporary.write_bytes(msgspec.json.encode(note))
            temporary.replace(self._note_path)

    def _check_space(self) -> None:
        self._puller.check_space(max(self._note.size - self._have, 0))

    def _tell(self) -> None:
        total = max(self._note.size, self._have)
        self._puller.report(TransferProgress(f"pulling {Path(self._url).name[:60]}", "", total, self._have))

    def _wait(self, seconds: float) -> None:
        if self._puller.cancelled.wait(seconds):
            raise TransferCancelledError


def _version(answer: httpx.Response) -> str:
    """Return the strong validator of a response (RFC 9110, 8.8): a tag that is not weak, else the date."""
    tag: str = answer.headers.get("etag", "")
    return tag if tag and not tag.startswith("W/") else str(answer.headers.get("last-modified", ""))
