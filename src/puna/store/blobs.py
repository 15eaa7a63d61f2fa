"""Blobs: files named by the sha256 of their content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import AsyncIterable, Iterable
from pathlib import Path
from types import TracebackType

from puna.errors import InvalidNameError, RequestError
from puna.store.files import move_into_place, storage_errors

_DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
_CHUNK_BYTES = 1 << 20


def normalize_digest(digest: str) -> str:
    """`sha256:` and 64 lower-case hex digits. Raises InvalidNameError for any other form."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise InvalidNameError(f'invalid digest format: "{digest}" is not sha256: and 64 hex digits')
    return "sha256:" + match[1].lower()


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """Digest of a file's content. Raises OSError."""
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


class BlobWriter:
    """Receives one blob in pieces; it appears in the store only by `commit`, whole and checked.

    A context manager: leaving it without `commit` throws the pieces away.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hash = hashlib.sha256()
        self.size = 0
        with storage_errors("write into", folder):
            folder.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(prefix="tmp-", dir=folder)
        self._temporary = Path(name)
        self._file = os.fdopen(descriptor, "wb", buffering=_CHUNK_BYTES)

    def write(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self.size += len(data)
        with storage_errors("write", self._temporary):
            self._file.write(data)

    def commit(self, expected: str | None = None) -> str:
        """Sync, check and rename; answers the digest. Raises RequestError if it is not `expected`."""
        digest = "sha256:" + self._hash.hexdigest()
        if expected is not None and digest != expected:
            raise RequestError(f'digest mismatch, expected "{expected}", got "{digest}"')
        with storage_errors("write", self._temporary):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            move_into_place(self._temporary, self._folder / digest.replace(":", "-"))
        return digest

    def __enter__(self) -> BlobWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A full disk fails again on the final flush; the first error is the one to show.
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)


class Blobs:
    """The `blobs/` directory of a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        """Where the blob is, or would be. Raises InvalidNameError for a malformed digest."""
        name = normalize_digest(digest)
        usual = self.folder / name.replace(":", "-")
        ancient = self.folder / name
        return ancient if not usual.exists() and ancient.exists() else usual

    def has(self, digest: str) -> bool:
        return self.path(digest).is_file()

    def touch(self, digest: str) -> bool:
        """True if the blob is there; it then counts as new, so that no pruner takes it meanwhile."""
        path = self.path(digest)
        if not path.is_file():
            return False
        # In a store of another user, or a read-only one, being there is enough.
        with contextlib.suppress(OSError):
            os.utime(path)
        return True

    def put(self, digest: str, chunks: Iterable[bytes]) -> bool:
        """Store a blob under `digest`; False if it was there already (then `chunks` is not read).

        Raises RequestError when the content has another digest, StoreError when it cannot be written.
        """
        expected = normalize_digest(digest)
        if self.touch(expected):
            return False
        with BlobWriter(self.folder) as writer:
            for chunk in chunks:
                writer.write(chunk)
            writer.commit(expected)
        return True

    async def put_async(self, digest: str, chunks: AsyncIterable[bytes]) -> bool:
        """`put` for a body that arrives asynchronously."""
        expected = normalize_digest(digest)
        if self.touch(expected):
            return False
        with BlobWriter(self.folder) as writer:
            async for chunk in chunks:
                writer.write(chunk)
            writer.commit(expected)
        return True

    def add(self, data: bytes) -> tuple[str, bool]:
        """Store bytes; answers their digest and whether they are new."""
        digest = digest_of(data)
        return digest, self.put(digest, [data])

    def add_file(self, path: Path) -> tuple[str, bool]:
        """Copy a file into the store; answers its digest and whether it is new."""
        with storage_errors("read", path):
            digest = file_digest(path)
            if self.touch(digest):
                return digest, False
            with path.open("rb") as file:
                return digest, self.put(digest, iter(lambda: file.read(_CHUNK_BYTES), b""))
