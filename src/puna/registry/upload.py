"""Uploading one blob: in pieces, again where it broke off, by the distribution protocol's sessions."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from urllib.parse import urlencode, urljoin, urlsplit

import httpx

from puna.errors import RegistryError
from puna.registry.download import PASSING, Patience
from puna.registry.network import TransferCancelledError, what_failed
from puna.registry.remote import RefusedError, Registry
from puna.store.blobs import storage_errors
from puna.store.manifest import ManifestLayer

#: Addresses of sessions carry the registry's own state; longer ones are no addresses.
_MOST = 16 << 10


class SessionNote:
    """The address of the session by which one blob goes to one repository.

    Only one upload at a time has it, also of other processes; another one of the same blob finds nothing, and
    leaves nothing. All of it only saves work, so nothing that goes wrong is an error.
    """

    def __init__(self, blob: Path, repository: str) -> None:
        place = hashlib.sha256(repository.encode()).hexdigest()[:12]
        self._path = blob.with_name(f"{blob.name}-push-{place}")
        self._descriptor = -1

    def read(self) -> str:
        """The address; empty if there is none."""
        if self._descriptor < 0:
            return ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return os.pread(self._descriptor, _MOST, 0).decode("ascii")
        return ""

    def write(self, address: str) -> None:
        """Note another address, or none."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError, UnicodeEncodeError):
                data = address.encode("ascii")
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, data, 0)

    def __enter__(self) -> SessionNote:
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
            else:
                self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor < 0:
            return
        if not self.read():
            self._path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1


#: Bytes of a piece: what is sent again, at most, when a connection breaks.
PIECE = 100_000_000
_CHUNK = 1 << 20
#: Pieces on their way at the same time, where the registry sends each to a place of its own.
_AT_ONCE = 4
_RANGE = re.compile(r"(?:bytes=)?0-(\d{1,18})", re.ASCII)


class _SessionLostError(Exception):
    """The registry does not know the session any more, or disagrees about what has come."""


class Upload:
    """Sends a blob that the registry does not have."""

    def __init__(
        self,
        registry: Registry,
        layer: ManifestLayer,
        path: Path,
        cancelled: threading.Event,
        patience: Patience,
        *,
        mount_from: str = "",
    ) -> None:
        """`mount_from` is a repository of the registry that may have the blob: `namespace/model`.

        The address of the session is noted beside the blob, so that another process can go on.
        """
        self._registry = registry
        self._layer = layer
        self._path = path
        self._cancelled = cancelled
        self._patience = patience
        self._mount_from = mount_from
        self._note = SessionNote(path, registry.url(""))
        self._stop = threading.Event()
        self._before = 0  # bytes that had come by an earlier session
        self._given: dict[int, int] = {}  # bytes of each piece, by its offset
        self._sums: dict[int, bytes] = {}  # the MD5 of each piece, by its offset

    @property
    def completed(self) -> int:
        """Bytes that are there, or on their way."""
        return self._before + sum(list(self._given.values()))

    def run(self) -> Generator[int, None, None]:
        """Send it all, yielding every now and then how many bytes are there.

        Raises RegistryError, RefusedError, StoreError, httpx.HTTPError and TransferCancelledError.
        """
        with self._note, ThreadPoolExecutor(1, thread_name_prefix="upload") as thread:
            work = thread.submit(self._work)
            try:
                while not work.done():
                    wait({work}, self._patience.report_s)
                    yield self.completed
            finally:
                self._stop.set()
            work.result()

    def _work(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upload") as pool:
            tries = 0
            while True:
                before = self.completed
                try:
                    self._session(pool)
                    self._note.write("")
                    return
                except (httpx.TransportError, httpx.StreamError) as error:
                    problem = what_failed(error)
                except RefusedError as refusal:
                    if refusal.status not in PASSING:
                        raise
                    problem = str(refusal)
                except _SessionLostError as error:
                    problem = str(error)
                    self._note.write("")
                tries = 0 if self.completed >= before + PIECE else tries + 1
                if tries >= self._patience.tries:
                    raise RegistryError(f"max retries exceeded: {problem}")
                if self._cancelled.wait(self._patience.first_wait_s * 2 ** max(tries - 1, 0)):
                    raise TransferCancelledError

    def _session(self, pool: ThreadPoolExecutor) -> None:
        """What is missing, in one session: an earlier one that is still open, or a new one."""
        place, offset = self._resumed() or (self._begun(), 0)
        size = self._layer.size
        self._before = offset
        self._given.clear()
        self._sums.clear()
        if place is None:  # the registry has taken it from elsewhere
            self._before = size
            return
        aside: list[Future[None]] = []
        try:
            while offset < size:
                length = min(PIECE, size - offset)
                place = self._piece(place, offset, length, pool, aside)
                if not aside:
                    self._note.write(place)
                offset += length
            for future in aside:
                future.result()
        except BaseException:
            self._stop.set()
            wait(aside)
            self._stop.clear()
            raise
        self._commit(place)

    def _begun(self) -> str | None:
        """The address of a new session; None if the blob was mounted instead."""
        url = self._registry.url("blobs/uploads/")
        if self._mount_from:
            url += "?" + urlencode({"mount": self._layer.digest, "from": self._mount_from})
        with self._registry.stream("POST", url, headers={"content-length": "0"}, redirected=False) as answer:
            return None if answer.status_code == 201 else _next(answer, url)

    def _resumed(self) -> tuple[str, int] | None:
        """The address of the session that was noted, and how much of the blob has come by it."""
        if not (place := self._note.read()):
            return None
        try:
            with self._registry.stream("GET", place, redirected=False) as answer:
                given = _RANGE.fullmatch(answer.headers.get("range", ""))
                offset = int(given[1]) + 1 if given else 0
                # "0-0" is what Docker's registry says of an empty session, too.
                if not 1 < offset <= self._layer.size or answer.status_code != 204:
                    return None
                return _next(answer, place), offset
        except (RefusedError, httpx.InvalidURL, httpx.UnsupportedProtocol):
            return None

    def _piece(
        self, place: str, offset: int, length: int, pool: ThreadPoolExecutor, aside: list[Future[None]]
    ) -> str:
        """Send a piece to `place`, or to where that sends it; the address for the next one."""
        headers = {
            "content-type": "application/octet-stream",
            "content-length": str(length),
            "content-range": f"{offset}-{offset + length - 1}",
            "x-redirect-uploads": "1",
        }
        try:
            with self._registry.stream(
                "PATCH", place, headers=headers, content=lambda: self._bytes(offset, length), redirected=False
            ) as answer:
                following = _next(answer, place)
                if not answer.is_redirect:
                    return following
                elsewhere = urljoin(place, answer.headers.get("location", ""))
        except RefusedError as refusal:
            if refusal.status in (404, 416):
                raise _SessionLostError(str(refusal)) from refusal
            if refusal.status == 413:
                raise RegistryError(
                    f"the registry takes no {length / 1e6:.0f} MB at once: allow more in front of it"
                ) from refusal
            raise
        self._given[offset] = 0
        aside.append(pool.submit(self._put, elsewhere, offset, length))
        return following

    def _put(self, place: str, offset: int, length: int) -> None:
        """Send a piece to a place of its own. No token goes there: `place` itself is the permission."""
        headers = {"content-type": "application/octet-stream", "content-length": str(length)}
        with self._registry.stream(
            "PUT",
            place,
            headers=headers,
            content=lambda: self._bytes(offset, length),
            redirected=False,
            authorised=False,
        ):
            pass

    def _bytes(self, offset: int, length: int) -> Iterator[bytes]:
        """A piece of the file, counted as it goes."""
        hashed = hashlib.md5(usedforsecurity=False)
        self._given[offset] = 0
        with storage_errors("read", self._path), self._path.open("rb") as file:
            file.seek(offset)
            while (missing := length - self._given[offset]) > 0:
                if self._cancelled.is_set() or self._stop.is_set():
                    raise TransferCancelledError
                data = file.read(min(_CHUNK, missing))
                if not data:
                    raise RegistryError(f"{self._layer.digest} is shorter than its manifest says")
                hashed.update(data)
                self._given[offset] += len(data)
                yield data
        self._sums[offset] = hashed.digest()

    def _commit(self, place: str) -> None:
        query = {"digest": self._layer.digest}
        if self._before == 0:
            joint = hashlib.md5(
                b"".join(each for _, each in sorted(self._sums.items())), usedforsecurity=False
            )
            query["etag"] = f"{joint.hexdigest()}-{len(self._sums)}"
        url = f"{place}{'&' if urlsplit(place).query else '?'}{urlencode(query)}"
        headers = {"content-type": "application/octet-stream", "content-length": "0"}
        try:
            with self._registry.stream("PUT", url, headers=headers, redirected=False):
                return
        except RefusedError as refusal:
            if refusal.status in (404, 416):
                raise _SessionLostError(str(refusal)) from refusal
            raise


def _next(answer: httpx.Response, url: str) -> str:
    """The address for what follows. Raises RegistryError if the answer to `url` names none."""
    place: str = answer.headers.get("docker-upload-location") or answer.headers.get("location", "")
    if not place:
        raise RegistryError(f"{answer.url.host} does not say where to upload to; is it a registry?")
    return urljoin(url, place)
