"""Uploads of blobs in pieces, resumable by the distribution protocol's sessions."""

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
from puna.registry.download import TRANSIENT, Patience
from puna.registry.network import TransferCancelledError, what_failed
from puna.registry.remote import RefusedError, Registry
from puna.store.blobs import storage_errors
from puna.store.manifest import ManifestLayer

#: Maximum bytes of a session's address, which carries the registry's own state.
_MAX_ADDRESS = 16 << 10


class SessionNote:
    """The saved address of the session that uploads one blob to one repository.

    Only one upload in any process uses it at a time; others of the same blob neither read nor write it. It
    merely saves work, so its failures are not errors.
    """

    def __init__(self, blob: Path, repository: str) -> None:
        place = hashlib.sha256(repository.encode()).hexdigest()[:12]
        self._path = blob.with_name(f"{blob.name}-push-{place}")
        self._descriptor = -1

    def read(self) -> str:
        """Return the address; empty if there is none."""
        if self._descriptor < 0:
            return ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return os.pread(self._descriptor, _MAX_ADDRESS, 0).decode("ascii")
        return ""

    def write(self, address: str) -> None:
        """Save an address, or none if empty."""
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


#: Bytes of a piece, the most that is sent again when a connection breaks.
PIECE = 100_000_000
_CHUNK = 1 << 20
#: Pieces sent in parallel, if the registry redirects each to an address of its own.
_AT_ONCE = 4
_RANGE = re.compile(r"(?:bytes=)?0-(\d{1,18})", re.ASCII)


class _SessionLostError(Exception):
    """The registry no longer knows the session, or disagrees about the bytes received."""


class Upload:
    """Upload of a blob that the registry does not have."""

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

        The address of the session is saved beside the blob, so that another process can resume it.
        """
        self._registry = registry
        self._layer = layer
        self._path = path
        self._cancelled = cancelled
        self._patience = patience
        self._mount_from = mount_from
        self._note = SessionNote(path, registry.url(""))
        self._stop = threading.Event()
        self._before = 0  # bytes uploaded by an earlier session
        self._given: dict[int, int] = {}  # bytes of each piece, by its offset
        self._sums: dict[int, bytes] = {}  # the MD5 of each piece, by its offset

    @property
    def completed(self) -> int:
        """The number of bytes uploaded or on their way."""
        return self._before + sum(list(self._given.values()))

    def run(self) -> Generator[int, None, None]:
        """Send the blob, regularly yielding the number of bytes uploaded.

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
                    if refusal.status not in TRANSIENT:
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
        """Send the missing bytes in one session: an earlier one that is still open, or a new one."""
        place, offset = self._resumed() or (self._started(), 0)
        size = self._layer.size
        self._before = offset
        self._given.clear()
        self._sums.clear()
        if place is None:  # the registry mounted it from another repository
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

    def _started(self) -> str | None:
        """Start a session and return its address; None if the blob was mounted instead."""
        url = self._registry.url("blobs/uploads/")
        if self._mount_from:
            url += "?" + urlencode({"mount": self._layer.digest, "from": self._mount_from})
        with self._registry.stream("POST", url, headers={"content-length": "0"}, redirected=False) as answer:
            return None if answer.status_code == 201 else _next(answer, url)

    def _resumed(self) -> tuple[str, int] | None:
        """Return the address of the saved session and the number of bytes it has received, or None."""
        if not (place := self._note.read()):
            return None
        try:
            with self._registry.stream("GET", place, redirected=False) as answer:
                given = _RANGE.fullmatch(answer.headers.get("range", ""))
                offset = int(given[1]) + 1 if given else 0
                # Docker's registry says "0-0" for an empty session, too.
                if not 1 < offset <= self._layer.size or answer.status_code != 204:
                    return None
                return _next(answer, place), offset
        except (RefusedError, httpx.InvalidURL, httpx.UnsupportedProtocol):
            return None

    def _piece(
        self, place: str, offset: int, length: int, pool: ThreadPoolExecutor, aside: list[Future[None]]
    ) -> str:
        """Send a piece to `place`, or where that redirects it; return the address for the next piece."""
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
                    f"the registry refuses uploads of {length / 1e6:.0f} MB; raise the limit of its proxy"
                ) from refusal
            raise
        self._given[offset] = 0
        aside.append(pool.submit(self._put, elsewhere, offset, length))
        return following

    def _put(self, place: str, offset: int, length: int) -> None:
        """Send a piece to its own address, without a token: the address itself is the permission."""
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
        """Yield a piece of the file in chunks, counting the bytes sent."""
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
                b"".join(digest for _, digest in sorted(self._sums.items())), usedforsecurity=False
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
    """Return the address for the next request. Raises RegistryError if the reply to `url` names none."""
    place: str = answer.headers.get("docker-upload-location") or answer.headers.get("location", "")
    if not place:
        raise RegistryError(f"{answer.url.host} does not say where to upload to; is it a registry?")
    return urljoin(url, place)
