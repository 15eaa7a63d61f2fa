"""Message batches on disk: a folder for each, with its requests and the results so far.

A batch's state is written when it changes; a result is a line at the end of a file. So a server that ends at
any moment leaves nothing that the next one could not go on with.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Final, Literal

import msgspec

from puna.store.blobs import storage_errors, write_atomically

Outcome = Literal["succeeded", "errored", "canceled", "expired"]

#: How long a batch may take, and how long its results are kept.
EXPIRES_S: Final = 24 * 3600.0
_KEPT_S: Final = 29 * 24 * 3600.0

_ID: Final = re.compile(r"msgbatch_[0-9a-f]{32}")
_STATE, _REQUESTS, _RESULTS = "batch.json", "requests.jsonl", "results.jsonl"

_log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode


class BatchState(msgspec.Struct):
    """A batch of `count` requests; times in seconds since the epoch.

    `owner` is the digest of the key that made it, `key` its name, and `client` its place in queues.
    """

    id: str
    owner: str
    key: str
    client: str
    count: int
    created_s: float
    cancelled_s: float | None = None
    ended_s: float | None = None
    counts: dict[str, int] = {}  # of the results, once it has ended


class StoredBatch:
    """A batch and its files. All methods block for a moment."""

    def __init__(self, folder: Path, state: BatchState) -> None:
        self.folder = folder
        self.state = state
        self.counts: Counter[str] = Counter(state.counts)
        self.size_bytes = sum(path.stat().st_size for path in folder.iterdir())
        self._done: set[str] = set()
        self._requests: IO[bytes] | None = None
        self._results: IO[bytes] | None = None
        if not self.has_ended:
            self._read_results()

    @classmethod
    def create(cls, root: Path, state: BatchState, requests: Iterable[dict[str, Any]]) -> StoredBatch:
        """Write a new batch. Raises StoreError."""
        folder = root / state.id
        with storage_errors("store a batch in", root):
            draft = root / f"new-{state.id}"
            try:
                draft.mkdir(mode=0o700, parents=True)
                with (draft / _REQUESTS).open("wb") as file:
                    for request in requests:
                        file.write(_encode(request) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                (draft / _STATE).write_bytes(_encode(state))
                draft.rename(folder)
            except BaseException:
                shutil.rmtree(draft, ignore_errors=True)
                raise
        return cls(folder, state)

    @classmethod
    def all_in(cls, root: Path) -> list[StoredBatch]:
        """Return the batches in a folder, oldest first, without damaged ones; delete what is too old."""
        found = []
        for folder in root.iterdir() if root.is_dir() else ():
            if not _ID.fullmatch(folder.name):
                if folder.name.startswith("new-"):
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            try:
                state = msgspec.json.decode((folder / _STATE).read_bytes(), type=BatchState)
                batch = cls(folder, state)
            except (OSError, ValueError, LookupError, TypeError) as error:
                _log.warning("the message batch %s is damaged and counts as missing: %s", folder.name, error)
                continue
            if batch.is_too_old:
                batch.delete()
            else:
                found.append(batch)
        return sorted(found, key=lambda batch: batch.state.created_s)

    @property
    def has_ended(self) -> bool:
        return self.state.ended_s is not None

    @property
    def is_too_old(self) -> bool:
        return self.has_ended and self.state.created_s <= time.time() - _KEPT_S

    @property
    def expires_s(self) -> float:
        return self.state.created_s + EXPIRES_S

    @property
    def results(self) -> Path:
        """The file with the results."""
        return self.folder / _RESULTS

    def next_request(self) -> dict[str, Any] | None:
        """Return the next request without a result that has not been returned; None if there is none."""
        if self._requests is None:
            self._requests = (self.folder / _REQUESTS).open("rb")
        while line := self._requests.readline():
            request: dict[str, Any] = json.loads(line)
            if request["custom_id"] not in self._done:
                return request
        return None

    def add_result(self, custom_id: str, outcome: Outcome, result: dict[str, Any]) -> int:
        """Write a result, and return its bytes. Raises StoreError."""
        line = _encode({"custom_id": custom_id, "result": {"type": outcome, **result}}) + b"\n"
        with storage_errors("write a result into", self.folder):
            if self._results is None:
                self._results = self.results.open("ab")
            self._results.write(line)
            self._results.flush()
        self._done.add(custom_id)
        self.counts[outcome] += 1
        self.size_bytes += len(line)
        return len(line)

    def save(self) -> None:
        """Write the state. Raises StoreError."""
        with storage_errors("write the state of a batch into", self.folder):
            write_atomically(self.folder / _STATE, _encode(self.state), self.folder)

    def end(self) -> None:
        """Note that all requests have results. Raises StoreError."""
        self.state.ended_s = time.time()
        self.state.counts = dict(self.counts)
        with storage_errors("end a batch in", self.folder):
            self.results.touch()
            if self._results is not None:
                os.fsync(self._results.fileno())
            self.save()
        self.close()

    def delete(self) -> None:
        """Delete the batch with its files."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        for file in (self._requests, self._results):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        self._requests = self._results = None

    def _read_results(self) -> None:
        """Read what has a result already; a line that a crash has cut off is removed."""
        if not self.results.exists():
            return
        whole = 0
        with self.results.open("r+b") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                found = json.loads(line)
                self._done.add(found["custom_id"])
                self.counts[found["result"]["type"]] += 1
                whole += len(line)
            file.truncate(whole)
