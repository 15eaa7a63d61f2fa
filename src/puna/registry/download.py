"""Downloading one blob: in parts, in parallel, again where it broke off, and checked."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass

import httpx

from puna.errors import RegistryError
from puna.registry.network import TransferCancelledError, what_failed
from puna.registry.partial import Part, Partial
from puna.registry.remote import RefusedError
from puna.store.files import storage_errors

#: Bytes from one to before another of a blob, as a server sends them.
Fetch = Callable[[int, int], AbstractContextManager[httpx.Response]]

#: Parts that are fetched at the same time.
_AT_ONCE = 8
_CHUNK = 1 << 20
#: Answers that another try may change.
PASSING = {408, 425, 429, 500, 502, 503, 504}
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)


@dataclass(frozen=True)
class Patience:
    """How often a part is tried without anything coming, and how long after the first failure to wait.

    Each further wait is twice as long.
    """

    tries: int = 6
    first_wait_s: float = 1.0
    report_s: float = 0.1  # between two reports of how far a download is


class Download:
    """Fetches what is missing of a blob into its partial file."""

    def __init__(
        self, partial: Partial, fetch: Fetch, cancelled: threading.Event, patience: Patience
    ) -> None:
        self._partial = partial
        self._fetch = fetch
        self._cancelled = cancelled
        self._patience = patience

    @property
    def completed(self) -> int:
        """Bytes that are there."""
        return sum(part.completed for part in self._partial.parts)

    def run(self) -> Iterator[int]:
        """Fetch all parts, yielding every now and then how many bytes are there.

        Raises RegistryError, StoreError, RefusedError and TransferCancelledError. What has come stays for the
        next time.
        """
        missing = [part for part in self._partial.parts if not part.done]
        failed = threading.Event()  # ends the other parts
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="download") as pool:
            waiting: set[Future[None]] = {pool.submit(self._part, part, failed) for part in missing}
            try:
                while waiting:
                    done, waiting = wait(waiting, self._patience.report_s, FIRST_EXCEPTION)
                    for future in done:
                        future.result()
                    yield self.completed
            finally:
                if waiting:
                    failed.set()
                    pool.shutdown(wait=True, cancel_futures=True)

    def _part(self, part: Part, failed: threading.Event) -> None:
        tries = 0
        while not part.done:
            before = part.completed
            try:
                self._some(part, failed)
                continue
            except (httpx.TransportError, httpx.StreamError) as error:
                problem = what_failed(error)
            except RefusedError as refusal:
                if refusal.status not in PASSING:
                    raise
                problem = str(refusal)
            # A connection that brings something now and then is slow, but works.
            tries = 0 if part.completed >= before + _CHUNK else tries + 1
            if tries >= self._patience.tries:
                raise RegistryError(f"max retries exceeded: {problem}")
            wait_s = self._patience.first_wait_s * 2 ** max(tries - 1, 0)
            if self._cancelled.wait(wait_s) or failed.is_set():
                raise TransferCancelledError

    def _some(self, part: Part, failed: threading.Event) -> None:
        """What one request brings of a part."""
        start, end = part.offset + part.completed, part.offset + part.size
        with self._fetch(start, end) as answer:
            skip = self._skipped(answer, start)
            for chunk in answer.iter_raw():
                data = chunk[skip:]
                skip -= len(chunk) - len(data)
                self._partial.write(part, data[: part.size - part.completed])
                if part.done:
                    return
                if self._cancelled.is_set() or failed.is_set():
                    raise TransferCancelledError
        if not part.done:
            raise httpx.RemoteProtocolError("the connection ended early")

    def _skipped(self, answer: httpx.Response, start: int) -> int:
        """How many of the answer's bytes come before the wanted ones. Raises RegistryError."""
        size = self._partial.size
        if answer.status_code == 206:
            given = _RANGE.fullmatch(answer.headers.get("content-range", ""))
            if given is None or int(given[1]) != start or given[3] not in ("*", str(size)):
                raise RegistryError(
                    f"{answer.url.host} sends {answer.headers.get('content-range')!r}, not the bytes from "
                    f"{start} of {size}"
                )
            return 0
        length = answer.headers.get("content-length")  # of the whole: this server knows no ranges
        if length is not None and length != str(size):
            raise RegistryError(f"{answer.url.host} has {length} bytes of a file that should have {size}")
        return start


def check(partial: Partial, digest: str, cancelled: threading.Event) -> None:
    """Compare the finished file with its digest; one that differs is removed.

    Raises RegistryError and TransferCancelledError.
    """
    hashed = hashlib.sha256()
    with storage_errors("read", partial.path), partial.path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while data := file.read(8 * _CHUNK):
            if cancelled.is_set():
                raise TransferCancelledError
            hashed.update(data)
    if (found := f"sha256:{hashed.hexdigest()}") != digest:
        partial.discard()
        raise RegistryError(f"digest mismatch, file must be downloaded again: want {digest}, got {found}")
