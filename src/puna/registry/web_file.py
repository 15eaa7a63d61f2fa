"""Pulling one GGUF file from a web address. Its digest is computed while it comes."""

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
from puna.registry.download import PASSING, BlobPuller
from puna.registry.network import TransferCancelledError, in_time, open_client, what_failed
from puna.registry.remote import RefusedError
from puna.registry.report import TransferProgress, told
from puna.store import ModelName, ModelSpec, StoredModel
from puna.store.blobs import move_into_place, read_whole, storage_errors
from puna.store.facts import MAGIC

_CHUNK = 1 << 20
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", re.ASCII)
#: A file without a length is given up after that many bytes, or where less than that is left on the disk.
_MAX_BYTES = 1 << 50
_LEFT_FREE = 1 << 30


def pull_file(puller: BlobPuller, url: str, model: ModelName, *, insecure: bool = False) -> StoredModel:
    """Make `model` of the file at `url`. Raises RegistryError, StoreError and TransferCancelledError."""
    place = url.partition("#")[0]
    with (
        told(),
        open_client(insecure=insecure, cancelled=puller.cancelled) as client,
        _Coming(puller, place) as coming,
    ):
        version = coming.version(client)
        origin = f"{_shown(place)} {version}"
        digest = _known(puller, model, origin) if version else ""
        if not digest:
            coming.fetch(client)
            digest = coming.finish()
    name = f"{model.model}.gguf"
    spec = ModelSpec(files={name: digest}, origins={name: origin} if version else {})
    return puller.store.create(model, spec, lambda status: puller.report(TransferProgress(status)))


def _known(puller: BlobPuller, model: ModelName, origin: str) -> str:
    """The digest of the file, if this version of it is what the model has; else empty."""
    if not puller.store.exists(model):
        return ""
    layer = puller.store.get(model).model_layer
    return layer.digest if layer and layer.origin == origin and puller.store.has_blob(layer.digest) else ""


def _shown(url: str) -> str:
    """The address without what may be secret: the query, and who asks."""
    address = httpx.URL(url)
    return str(address.copy_with(query=None, userinfo=b""))


class _Note(msgspec.Struct):
    """What has come so far is of this version of the file."""

    version: str = ""
    size: int = 0


class _Coming:
    """The file while it comes, beside the blobs, locked against other pulls of the same address."""

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

    def __enter__(self) -> _Coming:
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
        """What tells this version of the file from others: its entity tag or date; empty if nothing does."""
        try:
            with in_time("what the file is"):
                answer = client.head(self._url)
        except httpx.TransportError:
            return ""  # the file itself will tell
        return _version(answer) if answer.is_success else ""

    def fetch(self, client: httpx.Client) -> None:
        """All that is missing, in as many tries as it takes."""
        self._resume()
        tries = 0
        while True:
            before = self._have
            try:
                self._some(client)
                return
            except (httpx.TransportError, httpx.StreamError) as error:
                problem = what_failed(error)
            except RefusedError as refusal:
                if refusal.status not in PASSING:
                    raise
                problem = str(refusal)
            tries = 0 if self._have >= before + _CHUNK else tries + 1
            if tries >= self._puller.patience.tries:
                raise RegistryError(f"max retries exceeded: {problem}")
            self._wait(self._puller.patience.first_wait_s * 2 ** max(tries - 1, 0))

    def finish(self) -> str:
        """The file becomes a blob; its digest."""
        digest = f"sha256:{self._hash.hexdigest()}"
        with storage_errors("write", self._path):
            os.fsync(self._descriptor)
            move_into_place(self._path, self._puller.store.blob_path(digest))
            self._note_path.unlink(missing_ok=True)
        return digest

    def _some(self, client: httpx.Client) -> None:
        """What one request brings."""
        headers = {"range": f"bytes={self._have}-", "if-range": self._note.version} if self._have else {}
        with ExitStack() as stack:
            with in_time("the answer about the file"):
                answer = stack.enter_context(client.stream("GET", self._url, headers=headers))
            if answer.status_code == 416:
                self._start_over(_Note())
                raise httpx.RemoteProtocolError("the file has become another one")
            if answer.is_error:
                raise RefusedError.of(answer)
            self._agree(answer)
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

    def _agree(self, answer: httpx.Response) -> None:
        """Find out what of the file the answer brings; start over unless it is what is missing."""
        given = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if answer.status_code == 206:
            if given is not None and int(given[1]) == self._have and int(given[2]) == self._note.size:
                return
            raise RegistryError(
                f"{answer.url.host} sends {answer.headers.get('content-range')!r} of the file"
            )
        size = answer.headers.get("content-length", "")
        self._start_over(_Note(_version(answer), int(size) if re.fullmatch("[0-9]{1,18}", size) else 0))

    def _write(self, data: bytes) -> None:
        if self._have < len(MAGIC) and (begin := data[: len(MAGIC)]) != MAGIC and self._have == 0:
            raise RegistryError(f"{_shown(self._url)} is no GGUF file: it begins with {begin!r}")
        if self._have + len(data) > (self._note.size or _MAX_BYTES):
            raise RegistryError(f"{_shown(self._url)} has more bytes than it should")
        with storage_errors("write", self._path):
            view, at = memoryview(data), self._have
            while view:
                written = os.pwrite(self._descriptor, view, at)
                view, at = view[written:], at + written
        self._hash.update(data)
        self._have += len(data)

    def _resume(self) -> None:
        """Take what an earlier pull has left, if it can be known to be of the same file."""
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
    """A validator that says byte for byte the same file (RFC 9110, 8.8): no weak tag, else the date."""
    tag: str = answer.headers.get("etag", "")
    return tag if tag and not tag.startswith("W/") else str(answer.headers.get("last-modified", ""))
